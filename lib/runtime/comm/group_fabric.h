// What all host fabrics share: groups made of boards and links, control verbs over the group of all ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/group.h"

namespace moetrain::comm {

/// A fabric whose groups are GroupCores. A kind of fabric adds connect() and abort().
class GroupFabric : public Fabric {
 public:
  GroupFabric(int rank, std::vector<int> node_of, std::shared_ptr<Health> health);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(node_of_.size()); }
  int node_of(int rank) const override;
  std::unique_ptr<Communicator> make_group(const std::vector<int>& ranks,
                                           const std::string& name) override;
  void barrier() override;
  std::vector<std::string> gather(const std::string& mine) override;
  std::string broadcast(const std::string& value) override;
  int64_t max_over_ranks(int64_t value) override;
  TrafficCounters traffic() const override { return traffic_->read(); }

 protected:
  /// Fills in board and link of a new group. Collective over its members.
  virtual void connect(GroupParts& parts) = 0;
  /// Makes the control group; to be called by the constructor of each kind. Control data is not
  /// counted as traffic.
  void open_control();
  void close_control() { control_.reset(); }
  Health& health() const { return *health_; }
  const std::shared_ptr<Health>& shared_health() const { return health_; }

 private:
  std::shared_ptr<GroupCore> make_core(const std::vector<int>& ranks, const std::string& name,
                                       std::shared_ptr<Traffic> traffic);
  std::vector<int64_t> gather_sizes(int64_t mine);

  int rank_;
  std::vector<int> node_of_;
  std::shared_ptr<Health> health_;
  std::shared_ptr<Traffic> traffic_ = std::make_shared<Traffic>();
  std::shared_ptr<GroupCore> control_;
};

/// Turns any labels of nodes, one per rank, into indices in order of first appearance.
std::vector<int> node_indices(const std::vector<std::string>& labels);
/// The same for `ranks` ranks cut into nodes of `ranks_per_node` (0: all on one).
std::vector<int> nodes_of_equal_size(int ranks, int ranks_per_node);

}  // namespace moetrain::comm
