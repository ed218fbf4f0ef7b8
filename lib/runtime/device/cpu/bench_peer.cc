// Loads the peer's module from beside the executable.
#include "runtime/device/cpu/bench_peer.h"

#include <dlfcn.h>

#include <cstring>
#include <filesystem>
#include <memory>

#include "runtime/device/cpu/peer/peer.h"

namespace moetrain::cpu {
namespace {

struct Peer {
  PeerName name = nullptr;
  PeerPrepare prepare = nullptr;
  PeerRun run = nullptr;
  PeerRelease release = nullptr;
};

Peer load() {
  std::error_code ignored;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  void* module = dlopen((self.parent_path() / "moetrain_peer.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  Peer peer;
  if (!module) return peer;
  peer.name = reinterpret_cast<PeerName>(dlsym(module, kPeerName));
  peer.prepare = reinterpret_cast<PeerPrepare>(dlsym(module, kPeerPrepare));
  peer.run = reinterpret_cast<PeerRun>(dlsym(module, kPeerRun));
  peer.release = reinterpret_cast<PeerRelease>(dlsym(module, kPeerRelease));
  if (!peer.name || !peer.prepare || !peer.run || !peer.release) peer.name = nullptr;
  return peer;
}

/// The module stays loaded: its threads may outlive any use.
const Peer& peer() {
  static const Peer loaded = load();
  return loaded;
}

}  // namespace

std::string peer_name() {
  return peer().name ? peer().name() : "none (build with libdnnl-dev installed)";
}

std::function<void()> peer_launch(const char* op, const LaunchArgs& args) {
  if (!peer().name) return {};
  const bool grouped = std::strncmp(op, "grouped_", 8) == 0;
  const std::string form = grouped ? op + 8 : op;
  PeerProduct p{};
  Shape w;
  if (form == "matmul" || form == "matmul_dx") {
    p.form = form == "matmul" ? PeerForm::kForward : PeerForm::kInputGradient;
    w = args.in[1].shape;
  } else if (form == "matmul_dw") {
    p.form = PeerForm::kWeightGradient;
    w = args.out[0].shape;
  } else {
    return {};
  }
  p.bf16 = args.in[0].dtype == DType::kBF16;
  p.experts = grouped ? w[0] : 1;
  p.m = args.in[0].rows() / p.experts;
  p.n = w[w.size() - 2], p.k = w.back();
  p.first = args.in[0].data, p.second = args.in[1].data, p.result = args.out[0].data;
  p.threads = args.pool.size();
  void* prepared = peer().prepare(&p);
  if (!prepared) return {};
  const std::shared_ptr<void> owner(prepared, peer().release);
  return [owner] { peer().run(owner.get()); };
}

}  // namespace moetrain::cpu
