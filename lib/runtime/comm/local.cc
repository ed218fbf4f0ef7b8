// Ranks as threads of one process (tests), and the fabric of a single rank.
#include <stdlib.h>

#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <thread>

#include "base/error.h"
#include "runtime/comm/fault.h"
#include "runtime/comm/group_fabric.h"

namespace moetrain {

namespace comm {
namespace {

/// Messages from one member to another, in order.
struct Mailbox {
  void push(const void* data, int64_t bytes) {
    const char* from = static_cast<const char*>(data);
    std::lock_guard lock(mutex);
    messages.emplace_back(from, from + bytes);
    pushed.advance(++count);
  }
  std::vector<char> pop(uint32_t index, int owner, const Health& health) {
    pushed.wait(index + 1, owner, health);
    std::lock_guard lock(mutex);
    std::vector<char> message = std::move(messages.front());
    messages.pop_front();
    return message;
  }
  Counter pushed{};  // first: aligned
  std::mutex mutex;
  std::deque<std::vector<char>> messages;
  uint32_t count = 0;
};

/// What the members of one group share.
struct LocalGroup {
  LocalGroup(const GroupShape& shape) : boxes(shape.size() * shape.size()) {
    for (const auto& node : shape.nodes) {
      const int64_t bytes = Board::bytes_for(static_cast<int>(node.size()));
      void* memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
      MT_CHECK(memory != nullptr, bytes, " bytes for a board");
      std::memset(memory, 0, bytes);
      boards.emplace_back(memory, free);
    }
  }
  std::vector<std::shared_ptr<void>> boards;  // per node of the group
  std::vector<Mailbox> boxes;                 // [from * size + to]
};

struct LocalWorld {
  LocalWorld(int size, int ranks_per_node)
      : node_of(nodes_of_equal_size(size, ranks_per_node)), health(std::make_shared<Health>(size)) {}
  std::vector<int> node_of;
  std::shared_ptr<Health> health;
  std::mutex mutex;
  // The n-th group of the same ranks is one group: all members make theirs in the same order.
  std::map<std::pair<std::vector<int>, int>, std::shared_ptr<LocalGroup>> groups;
};

class LocalLink : public Link {
 public:
  LocalLink(std::shared_ptr<LocalGroup> group, const GroupShape& shape,
            std::shared_ptr<Health> health)
      : group_(std::move(group)),
        ranks_(shape.ranks),
        me_(shape.me),
        health_(std::move(health)),
        received_(shape.size(), 0) {}

  void start_send(int member, const void* data, int64_t bytes) override {
    box(me_, member).push(data, bytes);
  }
  void send_buffered(int member, const void* data, int64_t bytes) override {
    box(me_, member).push(data, bytes);
  }
  void start_recv(int member, void* data, int64_t bytes) override {
    pending_.push_back({member, data, bytes});
  }
  void finish() override {
    for (const Pending& p : pending_) {
      const std::vector<char> message =
          box(p.member, me_).pop(received_[p.member]++, ranks_[p.member], *health_);
      MT_CHECK(static_cast<int64_t>(message.size()) == p.bytes, "rank ", ranks_[p.member],
               " sent ", message.size(), " bytes, rank ", ranks_[me_], " expects ", p.bytes);
      std::memcpy(p.data, message.data(), p.bytes);
    }
    pending_.clear();
  }

 private:
  struct Pending {
    int member;
    void* data;
    int64_t bytes;
  };
  Mailbox& box(int from, int to) { return group_->boxes[from * ranks_.size() + to]; }

  std::shared_ptr<LocalGroup> group_;
  std::vector<int> ranks_;
  int me_;
  std::shared_ptr<Health> health_;
  std::vector<uint32_t> received_;
  std::vector<Pending> pending_;
};

class LocalFabric : public GroupFabric {
 public:
  LocalFabric(int rank, std::shared_ptr<LocalWorld> world)
      : GroupFabric(rank, world->node_of, world->health), world_(std::move(world)) {
    open_control();
  }

  void abort(const std::string& message, int exit_code) override {
    const JobAborted failure(message, exit_code);
    health().fail(rank(), std::make_exception_ptr(failure));
    throw failure;
  }

 private:
  void connect(GroupParts& parts) override {
    const GroupShape& shape = parts.shape;
    std::shared_ptr<LocalGroup> group;
    {
      std::lock_guard lock(world_->mutex);
      auto& slot = world_->groups[{shape.ranks, made_[shape.ranks]++}];
      if (!slot) slot = std::make_shared<LocalGroup>(shape);
      group = slot;
    }
    if (shape.my_node().size() > 1) {
      parts.board_memory = group->boards[shape.node[shape.me]];
      parts.board = std::make_unique<Board>(parts.board_memory.get(), shape.neighbours(),
                                            shape.local[shape.me], *parts.health, parts.name);
    }
    parts.link = std::make_unique<LocalLink>(group, shape, parts.health);
  }

  std::shared_ptr<LocalWorld> world_;
  std::map<std::vector<int>, int> made_;
};

class SingleFabric : public GroupFabric {
 public:
  SingleFabric() : GroupFabric(0, {0}, std::make_shared<Health>(1)) { open_control(); }

  void abort(const std::string& message, int exit_code) override {
    write_error(failure_text(0, 1, message, exit_code));
    std::fflush(nullptr);
    std::_Exit(exit_code);
  }

 private:
  void connect(GroupParts&) override {}
};

}  // namespace
}  // namespace comm

std::unique_ptr<Fabric> make_single_fabric() { return std::make_unique<comm::SingleFabric>(); }

void run_local_ranks(int size, int ranks_per_node, const std::function<void(Fabric&)>& body) {
  MT_CHECK(size >= 1, size, " ranks");
  const auto world = std::make_shared<comm::LocalWorld>(size, ranks_per_node);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([rank, world, &body] {
      try {
        comm::LocalFabric fabric(rank, world);
        body(fabric);
      } catch (...) {
        world->health->fail(rank, std::current_exception());
      }
      world->health->leave(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (const std::exception_ptr failure = world->health->first_failure()) {
    std::rethrow_exception(failure);
  }
}

}  // namespace moetrain
