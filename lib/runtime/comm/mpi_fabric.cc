// Ranks as processes under MPI: who is where, groups with boards and links, start and end.
#include "runtime/comm/mpi_fabric.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include <exception>
#include <optional>

#include "base/error.h"
#include "runtime/comm/fault.h"
#include "runtime/comm/group_fabric.h"
#include "runtime/comm/mpi_link.h"
#include "runtime/comm/mpi_watchdog.h"
#include "runtime/comm/shared_segment.h"

namespace moetrain {

namespace comm {
namespace {

constexpr int kSetupTag = 7;

/// What is learnt before anything else exists.
struct Place {
  int rank = 0, size = 1;
  std::vector<int> host_of;         // index of the real host of each rank
  std::vector<std::string> hosts;   // host name of each rank
};

Place join_job() {
  // Waiting ranks must give way: tests and small machines run more ranks than cores.
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
  int provided = 0;
  mpi_check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_MULTIPLE) {
    throw UserError(cat("this MPI gives thread level ", provided, ", MPI_THREAD_MULTIPLE (",
                        MPI_THREAD_MULTIPLE, ") is needed"));
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  Place place;
  MPI_Comm_rank(MPI_COMM_WORLD, &place.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &place.size);

  MPI_Comm here;
  mpi_check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here),
            "MPI_Comm_split_type");
  int first = place.rank, local = 0;
  MPI_Comm_rank(here, &local);
  mpi_check(MPI_Bcast(&first, 1, MPI_INT, 0, here), "MPI_Bcast");
  MPI_Comm_free(&here);
  if (local == 0) remove_stale_segments();

  constexpr int kName = 64;
  std::vector<int> firsts(place.size);
  std::vector<char> names(static_cast<size_t>(place.size) * kName);
  char name[kName] = "";
  strncpy(name, host_name().c_str(), kName - 1);
  mpi_check(MPI_Allgather(&first, 1, MPI_INT, firsts.data(), 1, MPI_INT, MPI_COMM_WORLD),
            "MPI_Allgather");
  mpi_check(MPI_Allgather(name, kName, MPI_CHAR, names.data(), kName, MPI_CHAR, MPI_COMM_WORLD),
            "MPI_Allgather");
  std::vector<std::string> labels;
  for (int r = 0; r < place.size; ++r) {
    labels.push_back(std::to_string(firsts[r]));
    place.hosts.emplace_back(names.data() + static_cast<size_t>(r) * kName);
  }
  place.host_of = node_indices(labels);
  return place;
}

/// Why `ranks_per_node` cannot be, or "".
std::string wrong_nodes(const Place& place, int ranks_per_node) {
  for (int r = 1; ranks_per_node > 0 && r < place.size; ++r) {
    if (r / ranks_per_node != (r - 1) / ranks_per_node) continue;
    if (place.host_of[r] == place.host_of[r - 1]) continue;
    return cat("parallel.ranks_per_node: ", ranks_per_node, " puts ranks ", r - 1, " and ", r,
               " on one node, but they run on hosts ", place.hosts[r - 1], " and ", place.hosts[r],
               "; start that many ranks per host (mpirun --map-by ppr:", ranks_per_node,
               ":node, srun --ntasks-per-node=", ranks_per_node, ") or choose a divisor");
  }
  return "";
}

class MpiFabric : public GroupFabric {
 public:
  MpiFabric(const Place& place, const MpiOptions& options)
      : GroupFabric(place.rank,
                    options.ranks_per_node > 0 && wrong_nodes(place, options.ranks_per_node).empty()
                        ? nodes_of_equal_size(place.size, options.ranks_per_node)
                        : place.host_of,
                    std::make_shared<Health>(place.size)),
        outbox_(std::make_shared<Outbox>()) {
    prctl(PR_SET_TIMERSLACK, 2000UL, 0, 0, 0);  // ns; short sleeps while polling stay short
    mpi_check(MPI_Comm_dup(MPI_COMM_WORLD, &groups_comm_), "MPI_Comm_dup");
    mpi_check(MPI_Comm_dup(MPI_COMM_WORLD, &watchdog_comm_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(groups_comm_, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(watchdog_comm_, MPI_ERRORS_RETURN);
    MPI_Comm_group(groups_comm_, &world_group_);
    watchdog_.emplace(watchdog_comm_, place.hosts, options, shared_health());
    guard_.emplace(place.rank, place.size,
                   [this](const std::string& message, int code) { abort(message, code); });
    const std::string wrong = wrong_nodes(place, options.ranks_per_node);
    if (!wrong.empty()) abort(wrong, kExitRefused);
    open_control();
    barrier();
  }

  ~MpiFabric() override {
    if (std::uncaught_exceptions() > 0) abort("the job was left by an exception", kExitFailure);
    barrier();  // nobody goes while others still work
    close_control();
    outbox_.reset();
    watchdog_.reset();
    guard_.reset();
    MPI_Group_free(&world_group_);
    MPI_Finalize();
  }

  void abort(const std::string& message, int exit_code) override {
    watchdog_->end_job(message, exit_code);
  }

 private:
  void connect(GroupParts& parts) override {
    const GroupShape& shape = parts.shape;
    MPI_Group group;
    MPI_Comm comm;
    mpi_check(MPI_Group_incl(world_group_, shape.size(), shape.ranks.data(), &group),
              "MPI_Group_incl");
    mpi_check(MPI_Comm_create_group(groups_comm_, group, 0, &comm), "MPI_Comm_create_group");
    MPI_Group_free(&group);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    if (shape.my_node().size() > 1) {
      parts.board_memory = share_memory(comm, shape);
      parts.board = std::make_unique<Board>(parts.board_memory.get(), shape.neighbours(),
                                            shape.local[shape.me], *parts.health, parts.name);
    }
    parts.link = std::make_unique<MpiLink>(comm, shape.ranks, outbox_, parts.health);
  }

  /// The node's first member creates the board's memory; its name lives until all have mapped it.
  static std::shared_ptr<void> share_memory(MPI_Comm comm, const GroupShape& shape) {
    const std::vector<int>& node = shape.my_node();
    const int64_t bytes = Board::bytes_for(static_cast<int>(node.size()));
    char wire[128] = "";
    char token = 0;
    std::shared_ptr<void> memory;
    if (shape.local[shape.me] == 0) {
      std::string name;
      memory = create_segment(bytes, name);
      strncpy(wire, name.c_str(), sizeof wire - 1);
      for (size_t l = 1; l < node.size(); ++l) {
        mpi_check(MPI_Send(wire, sizeof wire, MPI_CHAR, node[l], kSetupTag, comm), "MPI_Send");
      }
      for (size_t l = 1; l < node.size(); ++l) {
        mpi_check(MPI_Recv(&token, 1, MPI_CHAR, node[l], kSetupTag, comm, MPI_STATUS_IGNORE),
                  "MPI_Recv");
      }
      unlink_segment(name);
    } else {
      mpi_check(MPI_Recv(wire, sizeof wire, MPI_CHAR, node[0], kSetupTag, comm, MPI_STATUS_IGNORE),
                "MPI_Recv");
      memory = open_segment(wire, bytes);
      mpi_check(MPI_Send(&token, 1, MPI_CHAR, node[0], kSetupTag, comm), "MPI_Send");
    }
    return memory;
  }

  MPI_Comm groups_comm_ = MPI_COMM_NULL, watchdog_comm_ = MPI_COMM_NULL;
  MPI_Group world_group_ = MPI_GROUP_NULL;
  std::shared_ptr<Outbox> outbox_;
  std::optional<Watchdog> watchdog_;
  std::optional<FaultGuard> guard_;
};

}  // namespace
}  // namespace comm

std::unique_ptr<Fabric> make_mpi_fabric(const MpiOptions& options) {
  const comm::Place place = comm::join_job();
  return std::make_unique<comm::MpiFabric>(place, options);
}

}  // namespace moetrain
