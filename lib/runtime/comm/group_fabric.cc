// Groups and control verbs of the host fabrics.
#include "runtime/comm/group_fabric.h"

#include <algorithm>

#include "base/error.h"

namespace moetrain::comm {

namespace {

/// Tells the watchdog what the host thread is in.
class InVerb {
 public:
  InVerb(Health& health, const char* what) : health_(health), id_(health.enter(what)) {}
  ~InVerb() { health_.leave_verb(id_); }

 private:
  Health& health_;
  uint64_t id_;
};

}  // namespace

GroupFabric::GroupFabric(int rank, std::vector<int> node_of, std::shared_ptr<Health> health)
    : rank_(rank), node_of_(std::move(node_of)), health_(std::move(health)) {}

int GroupFabric::node_of(int rank) const {
  MT_CHECK(rank >= 0 && rank < size(), "node of rank ", rank);
  return node_of_[rank];
}

std::shared_ptr<GroupCore> GroupFabric::make_core(const std::vector<int>& ranks,
                                                  const std::string& name,
                                                  std::shared_ptr<Traffic> traffic) {
  GroupParts parts;
  parts.shape = GroupShape::make(ranks, rank_, node_of_);
  parts.name = name;
  parts.health = health_;
  parts.traffic = std::move(traffic);
  if (parts.shape.size() > 1) connect(parts);
  return std::make_shared<GroupCore>(std::move(parts));
}

std::unique_ptr<Communicator> GroupFabric::make_group(const std::vector<int>& ranks,
                                                      const std::string& name) {
  const InVerb in(*health_, "making a group");
  return make_group_communicator(make_core(ranks, name, traffic_));
}

void GroupFabric::open_control() {
  std::vector<int> all(node_of_.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
  control_ = make_core(all, "world", std::make_shared<Traffic>());
}

void GroupFabric::barrier() {
  const InVerb in(*health_, "barrier of all ranks");
  control_->barrier();
}

std::vector<int64_t> GroupFabric::gather_sizes(int64_t mine) {
  std::vector<Range> blocks(size());
  for (int i = 0; i < size(); ++i) blocks[i] = {i * int64_t{8}, 8};
  std::vector<int64_t> sizes(size());
  control_->gather_blocks(Verb::kGatherBlocks, &mine, blocks, sizes.data());
  return sizes;
}

std::vector<std::string> GroupFabric::gather(const std::string& mine) {
  const InVerb in(*health_, "gather over all ranks");
  const std::vector<int64_t> sizes = gather_sizes(static_cast<int64_t>(mine.size()));
  std::vector<Range> blocks(size());
  int64_t total = 0;
  for (int i = 0; i < size(); ++i) {
    blocks[i] = {total, sizes[i]};
    total += sizes[i];
  }
  std::string joined(total, '\0');
  control_->gather_blocks(Verb::kGatherBlocks, mine.data(), blocks, joined.data());
  std::vector<std::string> result(size());
  for (int i = 0; i < size(); ++i) result[i] = joined.substr(blocks[i].begin, blocks[i].size);
  return result;
}

std::string GroupFabric::broadcast(const std::string& value) {
  const InVerb in(*health_, "broadcast to all ranks");
  const int64_t bytes = gather_sizes(rank_ == 0 ? static_cast<int64_t>(value.size()) : 0)[0];
  std::vector<Range> blocks(size(), Range{bytes, 0});
  blocks[0] = {0, bytes};
  std::string result(bytes, '\0');
  control_->gather_blocks(Verb::kGatherBlocks, value.data(), blocks, result.data());
  return result;
}

int64_t GroupFabric::max_over_ranks(int64_t value) {
  const InVerb in(*health_, "maximum over all ranks");
  control_->all_reduce(&value, 1, DType::kI64, ReduceOp::kMax);
  return value;
}

std::vector<int> node_indices(const std::vector<std::string>& labels) {
  std::vector<std::string> seen;
  std::vector<int> result;
  for (const std::string& label : labels) {
    const auto found = std::find(seen.begin(), seen.end(), label);
    result.push_back(static_cast<int>(found - seen.begin()));
    if (found == seen.end()) seen.push_back(label);
  }
  return result;
}

std::vector<int> nodes_of_equal_size(int ranks, int ranks_per_node) {
  std::vector<int> result(ranks);
  for (int i = 0; i < ranks; ++i) result[i] = ranks_per_node > 0 ? i / ranks_per_node : 0;
  return result;
}

}  // namespace moetrain::comm
