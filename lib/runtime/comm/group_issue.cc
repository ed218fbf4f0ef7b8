// The communicator: issues the blocking verbs of a group to lanes, in the order of issue.
#include "base/error.h"
#include "runtime/comm/group.h"

namespace moetrain::comm {

const char* name_of(Verb verb) {
  switch (verb) {
    case Verb::kAllGather: return "all_gather";
    case Verb::kReduceScatter: return "reduce_scatter";
    case Verb::kAllReduce: return "all_reduce";
    case Verb::kAllToAll: return "all_to_all";
    case Verb::kAllToAllV: return "all_to_all_v";
    case Verb::kSend: return "send";
    case Verb::kRecv: return "recv";
    case Verb::kBarrier: return "barrier";
    case Verb::kGatherBlocks: return "control gather";
  }
  return "unknown verb";
}

std::string describe_verb(int32_t verb, int32_t detail, int64_t size) {
  return cat(name_of(static_cast<Verb>(verb)), "(detail ", detail, ", size ", size, ")");
}

namespace {

/// A core and whose turn it is: verbs issued to several lanes still run in the order of issue.
struct Issued {
  explicit Issued(std::shared_ptr<GroupCore> core) : core(std::move(core)) {}
  std::shared_ptr<GroupCore> core;
  Counter turn{};
};

class GroupCommunicator : public Communicator {
 public:
  explicit GroupCommunicator(std::shared_ptr<GroupCore> core)
      : issued_(std::make_shared<Issued>(std::move(core))) {}

  int rank() const override { return shape().me; }
  int size() const override { return shape().size(); }

  void all_gather(const void* send, void* recv, int64_t bytes, Lane& lane) override {
    issue(lane, Verb::kAllGather, [=, blocks = equal_blocks(bytes)](GroupCore& core) {
      core.gather_blocks(Verb::kAllGather, send, blocks, recv);
    });
  }

  void reduce_scatter(const void* send, void* recv, int64_t count, DType dtype, ReduceOp op,
                      Lane& lane) override {
    issue(lane, Verb::kReduceScatter, [=, blocks = equal_blocks(count)](GroupCore& core) {
      core.reduce_blocks(Verb::kReduceScatter, send, blocks, recv, dtype, op);
    });
  }

  void all_reduce(void* buffer, int64_t count, DType dtype, ReduceOp op, Lane& lane) override {
    issue(lane, Verb::kAllReduce,
          [=](GroupCore& core) { core.all_reduce(buffer, count, dtype, op); });
  }

  void all_to_all(const void* send, void* recv, int64_t bytes, Lane& lane) override {
    issue(lane, Verb::kAllToAll, [=](GroupCore& core) {
      const std::vector<int64_t> sizes(core.shape().size(), bytes);
      core.exchange(Verb::kAllToAll, send, sizes, recv, sizes);
    });
  }

  void all_to_all_v(const void* send, const std::vector<int64_t>& send_bytes, void* recv,
                    const std::vector<int64_t>& recv_bytes, Lane& lane) override {
    MT_CHECK(static_cast<int>(send_bytes.size()) == size() &&
                 static_cast<int>(recv_bytes.size()) == size(),
             "sizes for ", send_bytes.size(), " and ", recv_bytes.size(), " members of ", size());
    issue(lane, Verb::kAllToAllV, [=](GroupCore& core) {
      core.exchange(Verb::kAllToAllV, send, send_bytes, recv, recv_bytes);
    });
  }

  void send(const void* data, int64_t bytes, int peer, Lane& lane) override {
    issue(lane, Verb::kSend, [=](GroupCore& core) { core.send(data, bytes, peer); });
  }

  void recv(void* data, int64_t bytes, int peer, Lane& lane) override {
    issue(lane, Verb::kRecv, [=](GroupCore& core) { core.recv(data, bytes, peer); });
  }

  void barrier(Lane& lane) override {
    issue(lane, Verb::kBarrier, [](GroupCore& core) { core.barrier(); });
  }

 private:
  const GroupShape& shape() const { return issued_->core->shape(); }

  std::vector<Range> equal_blocks(int64_t size) const {
    std::vector<Range> blocks(shape().size());
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = {static_cast<int64_t>(i) * size, size};
    return blocks;
  }

  template <class Work>
  void issue(Lane& lane, Verb verb, Work work) {
    auto* host = dynamic_cast<HostLane*>(&lane);
    MT_CHECK(host != nullptr, "group ", issued_->core->name(), " runs on host lanes only");
    host->post([issued = issued_, ticket = next_ticket_++, verb, work = std::move(work)] {
      GroupCore& core = *issued->core;
      const int my_rank = core.shape().ranks[core.shape().me];
      issued->turn.wait(ticket, my_rank, core.health());
      const uint64_t id =
          core.health().enter(std::string(name_of(verb)) + " of group " + core.name());
      try {
        work(core);
      } catch (...) {
        core.health().fail(my_rank, std::current_exception());
        throw;
      }
      core.health().leave_verb(id);
      issued->turn.advance(ticket + 1);
    });
  }

  std::shared_ptr<Issued> issued_;
  uint32_t next_ticket_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_group_communicator(std::shared_ptr<GroupCore> core) {
  return std::make_unique<GroupCommunicator>(std::move(core));
}

}  // namespace moetrain::comm
