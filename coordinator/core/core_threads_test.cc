// The core with many jobs: an event affects only its own job, whatever happens
// in others at the same time.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <future>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "common/limits.h"
#include "common/wire/link.h"
#include "coordinator/core/coordinator_core.h"
#include "coordinator/core/testing/testing.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

proto::ExecutorMessage Hello(const std::string& job, const std::string& node) {
  proto::ExecutorMessage m;
  m.mutable_hello()->set_protocol_version(kProtocolVersion);
  m.mutable_hello()->set_newest_version(kProtocolVersion);
  m.mutable_hello()->set_job(job);
  m.mutable_hello()->set_node(node);
  return m;
}

TEST(CoreThreadsTest, AnEventVisitsItsOwnJobOnly) {
  constexpr int kJobs = 256;
  TestBed bed;
  std::vector<Executor*> a, b;
  for (int i = 0; i < kJobs; ++i) {
    const std::string job = "j" + std::to_string(i);
    a.push_back(&bed.Connect(job, "n0"));
    b.push_back(&bed.Connect(job, "n1"));
    bed.Ready(*a.back(), 2, {0});
    bed.Ready(*b.back(), 2, {1});
  }
  auto visited = [&bed, before = bed.core().jobs_visited()]() mutable {
    const uint64_t now = bed.core().jobs_visited();
    return now - std::exchange(before, now);
  };
  bed.From(*a[7], Present(1, {Allreduce("x", {0}, {3})}));
  bed.From(*b[7], Present(1, {Allreduce("x", {1}, {3})}));
  EXPECT_EQ(a[7]->runs.size(), 1u);
  EXPECT_EQ(visited(), 2u);
  // Every job has a deadline, but only jobs that are due are visited. One whose
  // executor is away is due after 250 ms (JobShard::Deadline()).
  constexpr Time kLook = milliseconds(250);
  for (int i = 0; i < kJobs; ++i) {
    bed.Break(*a[i]);
    bed.Pass(kLook / kJobs);
  }
  EXPECT_EQ(visited(), uint64_t{kJobs});
  bed.Resume(*a[9]);
  EXPECT_EQ(visited(), 1u);
  bed.Pass(kLook - kJobs * (kLook / kJobs));  // the first one's is over
  EXPECT_EQ(visited(), 1u);
  bed.Pass(seconds(3));
  for (int i = 0; i < kJobs; ++i) {
    EXPECT_EQ(b[i]->ends.size(), i == 9 ? 0u : 1u) << i;
  }
}

TEST(CoreThreadsTest, AJobWhoseActionsTakeTheirTimeHoldsUpNoOther) {
  CoordinatorCore core(Config(), "incarnation");
  const auto nothing = [](Actions*) {};
  core.Received(seconds(1), 1, Hello("slow", "n0"), nothing);
  core.Received(seconds(1), 2, Hello("quick", "n0"), nothing);
  std::promise<void> begun, go_on;
  std::thread slow([&] {
    core.Received(seconds(1), 3, Hello("slow", "n1"), [&](Actions*) {
      begun.set_value();
      go_on.get_future().wait();
    });
  });
  begun.get_future().wait();
  int carried = 0;
  const auto count = [&carried](Actions* actions) {
    carried += actions->empty() ? 0 : 1;
  };
  std::future<void> quick = std::async(std::launch::async, [&] {
    proto::ExecutorMessage ready;
    ready.set_sequence(1);
    ready.mutable_ranks_ready()->set_size(1);
    ready.mutable_ranks_ready()->set_chunk_bytes(4096);
    ready.mutable_ranks_ready()->add_ranks(0);
    core.Received(seconds(1), 2, ready, count);
    core.Received(seconds(1), 4, Hello("third", "n0"), count);
    core.Ended(seconds(1), 4, StreamEnd::kBroken, count);
    for (milliseconds t(1000); t <= seconds(5); t += milliseconds(250)) {
      core.Passed(t, count);
    }
    proto::DrainRequest drain;
    drain.set_node("n9");
    EXPECT_TRUE(core.Drain(seconds(5), drain, count).ok());
  });
  EXPECT_EQ(quick.wait_for(seconds(20)), std::future_status::ready);
  go_on.set_value();
  slow.join();
  quick.wait();
  EXPECT_EQ(carried, 5);
  EXPECT_EQ(core.totals().jobs, 2u);  // the third was lost
}

// An executor that several threads' events may reach.
struct Peer {
  std::mutex mutex;
  StreamId stream = 0;  // 0: none
  std::string session;
  std::string incarnation;
  std::optional<Link<proto::ExecutorMessage>> link;
  int bad = 0;  // messages out of order
};

// Peers by number of the thread and of its two jobs. A stream's number
// identifies its peer, so that a message locks only that peer.
class Crowd {
 public:
  static constexpr int kThreads = 4;
  static constexpr int kPeers = 2 * kThreads;

  void Carry(Actions* actions) {
    for (const Action& action : *actions) {
      if (const Send* send = std::get_if<Send>(&action)) {
        Peer& peer = peers_[send->stream % kPeers];
        std::lock_guard lock(peer.mutex);
        if (peer.stream == send->stream) {
          Receive(&peer, send->message.ToMessage());
        }
      } else if (const Close* close = std::get_if<Close>(&action)) {
        Peer& peer = peers_[close->stream % kPeers];
        std::lock_guard lock(peer.mutex);
        if (peer.stream != close->stream) continue;
        peer.stream = 0;
        peer.session.clear();
      }
    }
  }

  void Run(int thread, int steps) {
    std::minstd_rand random(thread + 1);
    for (int i = 0; i < steps; ++i) {
      Step(2 * thread + random() % 2, random() % 16);
    }
    for (int i : {2 * thread, 2 * thread + 1}) Break(i, StreamEnd::kBroken);
  }

  // Does what an operator and a timer do.
  void Look(int step) {
    const auto carry = [this](Actions* actions) { Carry(actions); };
    core_.Passed(Now(), carry);
    (void)core_.totals();
    (void)core_.TakeStragglerTime(Now());
    EXPECT_TRUE(core_.Status(Now(), proto::StatusRequest()).ok());
    proto::DrainRequest drain;
    drain.set_node("elsewhere");
    drain.set_undo(step % 2 == 1);
    EXPECT_TRUE(core_.Drain(Now(), drain, carry).ok());
    proto::AbortRequest abort;
    abort.set_job(step % 64 == 0 ? "shared" : "none");
    (void)core_.Abort(Now(), abort, carry);
  }

  // All peers are gone: nothing is left.
  void ExpectNothingLeft() {
    // In steps, as a timer does: one that is seconds late was stopped with its
    // process.
    for (int i = 0; i < 20; ++i) {
      now_ += Time(milliseconds(500)).count();
      core_.Passed(Now(), [this](Actions* actions) { Carry(actions); });
    }
    EXPECT_EQ(core_.totals().jobs, 0u);
    EXPECT_EQ(core_.totals().nodes, 0u);
    EXPECT_FALSE(core_.Deadline());
    for (Peer& peer : peers_) EXPECT_EQ(peer.bad, 0);
  }

 private:
  Time Now() { return Time(now_ += 1000); }

  void Step(int number, int what) {
    Peer& peer = peers_[number];
    std::unique_lock lock(peer.mutex);
    if (peer.stream == 0) {
      lock.unlock();
      return Connect(number);
    }
    lock.unlock();
    if (what == 0) return Break(number, StreamEnd::kBroken);
    if (what == 1) return Break(number, StreamEnd::kFinished);
    if (what == 2) return Connect(number);  // the old stream's end comes late
    Say(number, what);
  }

  void Connect(int number) {
    Peer& peer = peers_[number];
    proto::ExecutorMessage hello =
        Hello(number % 2 == 0 ? "shared" : "own" + std::to_string(number),
              "n" + std::to_string(number));
    StreamId stream = 0;
    std::vector<proto::ExecutorMessage> again;
    {
      std::lock_guard lock(peer.mutex);
      stream = peer.stream = kPeers * ++last_stream_ + number;
      if (peer.session.empty()) {
        peer.link.emplace(1000);
      } else {
        hello.mutable_hello()->set_session(peer.session);
        hello.mutable_hello()->set_incarnation(peer.incarnation);
        hello = peer.link->Bare(hello);
        peer.link->Resend(
            [&again](const proto::ExecutorMessage& m) { again.push_back(m); });
      }
    }
    Deliver(stream, hello);
    for (const proto::ExecutorMessage& m : again) Deliver(stream, m);
  }

  void Break(int number, StreamEnd end) {
    Peer& peer = peers_[number];
    StreamId stream = 0;
    {
      std::lock_guard lock(peer.mutex);
      stream = std::exchange(peer.stream, 0);
      if (end == StreamEnd::kFinished) peer.session.clear();
    }
    if (stream == 0) return;
    core_.Ended(Now(), stream, end, [this](Actions* a) { Carry(a); });
  }

  void Say(int number, int what) {
    Peer& peer = peers_[number];
    proto::ExecutorMessage m;
    if (what < 8) {
      m.mutable_ranks_ready()->set_size(1);
      m.mutable_ranks_ready()->set_chunk_bytes(4096);
      m.mutable_ranks_ready()->add_ranks(0);
    } else {
      m.mutable_rank_gone()->set_rank(0);
      m.mutable_rank_gone()->set_clean(true);
    }
    StreamId stream = 0;
    {
      std::lock_guard lock(peer.mutex);
      stream = peer.stream;
      const proto::ExecutorMessage* numbered = peer.link->Push(std::move(m));
      if (stream == 0 || numbered == nullptr) return;
      m = *numbered;
    }
    Deliver(stream, m);
  }

  void Deliver(StreamId stream, const proto::ExecutorMessage& message) {
    core_.Received(Now(), stream, message, [this](Actions* a) { Carry(a); });
  }

  static void Receive(Peer* peer, const proto::CoordinatorMessage& message) {
    if (message.has_welcome()) {
      peer->session = message.welcome().session();
      peer->incarnation = message.welcome().incarnation();
    }
    const Receipt receipt =
        peer->link->OnReceived(message.sequence(), message.acknowledged());
    if (receipt == Receipt::kGap || receipt == Receipt::kBadAck) ++peer->bad;
  }

  CoordinatorCore core_{Config(), "incarnation"};
  std::atomic<Time::rep> now_{Time(seconds(1000)).count()};
  std::atomic<StreamId> last_stream_{0};
  std::deque<Peer> peers_{kPeers};
};

TEST(CoreThreadsTest, ManyThreadsAndManyJobs) {
  Crowd crowd;
  std::vector<std::thread> threads;
  std::atomic<int> running{Crowd::kThreads};
  for (int i = 0; i < Crowd::kThreads; ++i) {
    threads.emplace_back([&, i] {
      crowd.Run(i, 3000);
      --running;
    });
  }
  for (int step = 0; running > 0; ++step) crowd.Look(step);
  for (std::thread& thread : threads) thread.join();
  crowd.ExpectNothingLeft();
}

}  // namespace
}  // namespace maypole::coordinator
