// What a peer library must offer to be timed beside our products; loaded when `bench kernels` runs,
// if built.
#pragma once

#include <cstdint>

namespace moetrain::cpu {

enum class PeerForm : int { kForward, kInputGradient, kWeightGradient };

/// `experts` products of one layer y = x w^T with `m` rows each, w [experts, n, k]; operands lie
/// one behind the other as in our own kernels. dw is float and added to.
struct PeerProduct {
  PeerForm form;
  bool bf16;  ///< operands, and y and dx
  int64_t experts, m, n, k;
  const void *first, *second;
  void* result;
  int threads;
};

/// Names of the functions a peer module exports, and what they are.
inline constexpr char kPeerName[] = "moetrain_peer_name";
inline constexpr char kPeerPrepare[] = "moetrain_peer_prepare";
inline constexpr char kPeerRun[] = "moetrain_peer_run";
inline constexpr char kPeerRelease[] = "moetrain_peer_release";
using PeerName = const char* (*)();
/// Prepares a product, its weight in the peer's own order; null if the peer cannot run it.
using PeerPrepare = void* (*)(const PeerProduct*);
using PeerRun = void (*)(void* prepared);
using PeerRelease = void (*)(void* prepared);

}  // namespace moetrain::cpu
