#include "coordinator/election/election_core.h"

#include <chrono>
#include <map>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using Kind = StoreCall::Kind;
using State = ElectionCore::State;

constexpr BootInstant kTtl = seconds(10);
constexpr LeaseId kLease = 77;

// One core whose calls the test answers.
class ElectionCoreTest : public ::testing::Test {
 protected:
  template <typename T>
  const T* Find() const {
    for (const ElectionAction& a : actions_) {
      if (const T* found = std::get_if<T>(&a)) return found;
    }
    return nullptr;
  }
  // The call that the last event has emitted.
  Kind Called() const {
    const StoreCall* call = Find<StoreCall>();
    EXPECT_NE(call, nullptr) << "no call";
    return call == nullptr ? Kind::kRevoke : call->kind;
  }
  void Pass(BootInstant now) {
    actions_.clear();
    core_.Passed(now, &actions_);
  }
  void Change(BootInstant now) {
    actions_.clear();
    core_.Changed(now, &actions_);
  }
  void Answer(BootInstant now, StoreAnswer answer) {
    actions_.clear();
    core_.Answered(now, answer, &actions_);
  }
  // Becomes the leader at 0 s; leads until 9 s.
  void BecomeLeader() {
    Pass(seconds(0));
    Answer(seconds(0), Seen{});
    Answer(seconds(0), LeaseGranted{kLease, kTtl});
    ASSERT_EQ(Called(), Kind::kClaim);
    Answer(seconds(0), Seen{Holder{"me", kLease, 5}});
    ASSERT_EQ(core_.state(), State::kLeader);
  }

  ElectionCore core_{kTtl, seconds(0)};
  ElectionActions actions_;
};

TEST_F(ElectionCoreTest, TheOnlyOneLeads) {
  Pass(seconds(0));
  EXPECT_EQ(Called(), Kind::kLook);
  Answer(seconds(1), Seen{});
  EXPECT_EQ(Called(), Kind::kGrant);
  Answer(seconds(2), LeaseGranted{kLease, kTtl});
  EXPECT_EQ(Called(), Kind::kClaim);
  EXPECT_EQ(Find<StoreCall>()->lease, kLease);
  Answer(seconds(3), Seen{Holder{"me", kLease, 5}});
  ASSERT_NE(Find<Lead>(), nullptr);
  EXPECT_EQ(Find<Lead>()->term, 5u);
  // The lease was requested at 1 s; a tenth of it is the margin.
  EXPECT_EQ(Find<Lead>()->until, seconds(10));
}

TEST_F(ElectionCoreTest, ALeaderCountsItsLeaseFromTheCallNotFromTheAnswer) {
  BecomeLeader();
  Pass(seconds(4));
  ASSERT_EQ(Called(), Kind::kRenew);
  Answer(seconds(8), LeaseRenewed{kTtl});
  ASSERT_NE(Find<Prolong>(), nullptr);
  EXPECT_EQ(Find<Prolong>()->until, seconds(13));
}

TEST_F(ElectionCoreTest, ALeaderRenewsAfterAThird) {
  BecomeLeader();
  Pass(milliseconds(3333));
  EXPECT_EQ(Find<StoreCall>(), nullptr);
  Pass(milliseconds(3334));
  EXPECT_EQ(Called(), Kind::kRenew);
  EXPECT_EQ(Find<StoreCall>()->lease, kLease);
}

TEST_F(ElectionCoreTest, ALeaderThatWasNotRenewedStepsDownBeforeAnythingElse) {
  // The renewal succeeds, but the answer is handled too late.
  BecomeLeader();
  Pass(seconds(4));
  Answer(seconds(9), LeaseRenewed{kTtl});
  ASSERT_NE(Find<StepDown>(), nullptr);
  EXPECT_EQ(actions_.size(), 1u);
  EXPECT_THAT(Find<StepDown>()->reason, HasSubstr("not renewed in time"));
  EXPECT_EQ(core_.state(), State::kOver);
  EXPECT_EQ(core_.Deadline(), std::nullopt);
}

TEST_F(ElectionCoreTest, NothingHappensAfterTheEnd) {
  BecomeLeader();
  Pass(seconds(9));
  ASSERT_NE(Find<StepDown>(), nullptr);
  Pass(seconds(20));
  EXPECT_TRUE(actions_.empty());
  Change(seconds(21));
  EXPECT_TRUE(actions_.empty());
  Answer(seconds(22), Seen{});
  EXPECT_TRUE(actions_.empty());
}

TEST_F(ElectionCoreTest, ACallOfALeaderEndsBeforeItsLease) {
  BecomeLeader();
  EXPECT_EQ(core_.Deadline(), kTtl / 3);
  Pass(seconds(8));
  ASSERT_EQ(Called(), Kind::kRenew);
  EXPECT_EQ(Find<StoreCall>()->timeout, seconds(1));
  EXPECT_EQ(core_.Deadline(), seconds(9));
}

TEST_F(ElectionCoreTest, ALeaderTriesAgainSoonAndSaysOnceThatTheStoreFails) {
  BecomeLeader();
  Pass(seconds(4));
  Answer(seconds(5), CallFailed{"no answer"});
  ASSERT_NE(Find<StoreFailed>(), nullptr);
  EXPECT_EQ(core_.Deadline(), milliseconds(5500));
  Pass(milliseconds(5500));
  ASSERT_EQ(Called(), Kind::kRenew);
  Answer(seconds(6), CallFailed{"still none"});
  EXPECT_EQ(Find<StoreFailed>(), nullptr);
  Pass(seconds(7));
  Answer(seconds(7), LeaseRenewed{kTtl});
  EXPECT_NE(Find<StoreAnswers>(), nullptr);
  EXPECT_EQ(Find<Prolong>()->until, seconds(16));
}

TEST_F(ElectionCoreTest, ALeaderNamesTheLastErrorWhenItStepsDown) {
  BecomeLeader();
  Pass(seconds(4));
  Answer(seconds(5), CallFailed{"etcd h1:2379: no quorum"});
  Pass(seconds(9));
  EXPECT_THAT(Find<StepDown>()->reason, HasSubstr("no quorum"));
}

TEST_F(ElectionCoreTest, ALeaderWhoseLeaseIsGoneStepsDown) {
  BecomeLeader();
  Pass(seconds(4));
  Answer(seconds(4), LeaseRenewed{});
  ASSERT_NE(Find<StepDown>(), nullptr);
}

TEST_F(ElectionCoreTest, ALeaderWhoseKeyIsGoneOrAnothersStepsDown) {
  for (const Seen& seen : {Seen{}, Seen{Holder{"b:1 x", 78, 6}}}) {
    core_ = ElectionCore(kTtl, seconds(0));
    BecomeLeader();
    Change(seconds(1));
    ASSERT_EQ(Called(), Kind::kLook);
    Answer(seconds(1), seen);
    ASSERT_NE(Find<StepDown>(), nullptr);
  }
  EXPECT_THAT(Find<StepDown>()->reason, HasSubstr("b:1 x"));
}

TEST_F(ElectionCoreTest, LooksThatFailDoNotPutOffRenewals) {
  BecomeLeader();
  Change(seconds(3));
  ASSERT_EQ(Called(), Kind::kLook);
  Answer(seconds(4), CallFailed{"x"});
  Change(seconds(4));
  EXPECT_EQ(Find<StoreCall>(), nullptr);
  Pass(milliseconds(4500));
  ASSERT_EQ(Called(), Kind::kRenew);
  Answer(seconds(5), LeaseRenewed{kTtl});
  EXPECT_EQ(Called(), Kind::kLook);  // now it looks
  Answer(seconds(5), Seen{Holder{"me", kLease, 5}});
  EXPECT_EQ(core_.state(), State::kLeader);
}

TEST_F(ElectionCoreTest, AStandbyFollowsAndLeadsWhenTheKeyIsGone) {
  Pass(seconds(0));
  Answer(seconds(0), Seen{Holder{"a:1 x", 3, 4}});
  ASSERT_NE(Find<Follow>(), nullptr);
  EXPECT_EQ(Find<Follow>()->holder->value, "a:1 x");
  Change(seconds(1));
  ASSERT_EQ(Called(), Kind::kLook);
  Answer(seconds(1), Seen{Holder{"a:1 x", 3, 4}});
  EXPECT_EQ(Find<Follow>(), nullptr);  // nothing new
  // It also looks without a notice.
  Pass(*core_.Deadline());
  ASSERT_EQ(Called(), Kind::kLook);
  Answer(seconds(5), Seen{});
  EXPECT_EQ(Find<Follow>()->holder, std::nullopt);
  EXPECT_EQ(Called(), Kind::kGrant);
}

TEST_F(ElectionCoreTest, TheLoserOfARaceRevokesItsLeaseAndFollows) {
  Pass(seconds(0));
  Answer(seconds(0), Seen{});
  Answer(seconds(0), LeaseGranted{kLease, kTtl});
  Answer(seconds(1), Seen{Holder{"b:1 y", 78, 6}});
  EXPECT_EQ(Find<Follow>()->holder->value, "b:1 y");
  ASSERT_EQ(Called(), Kind::kRevoke);
  EXPECT_EQ(Find<StoreCall>()->lease, kLease);
  Answer(seconds(1), LeaseRevoked{});
  EXPECT_EQ(core_.Deadline(), seconds(1) + kTtl / 3);
}

TEST_F(ElectionCoreTest, AClaimWhoseAnswerWasLostIsMadeAgain) {
  Pass(seconds(0));
  Answer(seconds(0), Seen{});
  Answer(seconds(0), LeaseGranted{kLease, kTtl});
  Answer(seconds(1), CallFailed{"broken"});
  Pass(*core_.Deadline());
  ASSERT_EQ(Called(), Kind::kClaim);
  Answer(seconds(3), Seen{Holder{"me", kLease, 5}});
  ASSERT_NE(Find<Lead>(), nullptr);
  EXPECT_EQ(Find<Lead>()->until, seconds(9));
}

TEST_F(ElectionCoreTest, AClaimThatIsAnsweredTooLateDoesNotLead) {
  Pass(seconds(0));
  Answer(seconds(0), Seen{});
  Answer(seconds(0), LeaseGranted{kLease, kTtl});
  Answer(seconds(9), Seen{Holder{"me", kLease, 5}});
  EXPECT_EQ(Find<Lead>(), nullptr);
  EXPECT_EQ(Called(), Kind::kRevoke);
}

TEST_F(ElectionCoreTest, ResigningReturnsTheLease) {
  BecomeLeader();
  EXPECT_EQ(core_.Resign(), kLease);
  EXPECT_EQ(core_.Resign(), 0);
  EXPECT_EQ(core_.state(), State::kOver);
}

// --- Any order of events -----------------------------------------------------

// A store and three coordinators in simulated time. Depending on the seed,
// requests and answers take any time, are lost, or take effect after the caller
// has given up; coordinators are paused, and handle nothing meanwhile.
class World {
 public:
  explicit World(uint32_t seed) : random_(seed) {
    for (int i = 0; i < 3; ++i) nodes_.emplace_back();
  }

  void Run() {
    for (int step = 0; step < 3000; ++step) {
      now_ += milliseconds(Below(400));
      Expire();
      if (!late_.empty() && Below(8) == 0) {
        Handle(late_.back());
        late_.pop_back();
      }
      Node& node = nodes_[Below(nodes_.size())];
      if (now_ >= node.paused_until) Move(&node);
      int leading = 0;
      for (const Node& n : nodes_) leading += now_ < n.until;
      ASSERT_LE(leading, 1) << "two lead in step " << step;
    }
  }

  int leaders() const { return leaders_; }

 private:
  struct Node {
    ElectionCore core{kTtl, BootInstant(0)};
    std::optional<StoreCall> call;      // in flight to the store
    std::optional<StoreAnswer> answer;  // in flight back
    BootInstant paused_until{};
    BootInstant until{};  // it leads until then
  };

  uint32_t Below(size_t n) { return random_() % n; }

  void Move(Node* node) {
    switch (Below(12)) {
      case 0:
        if (Below(4) == 0) node->paused_until = now_ + seconds(Below(30));
        return;
      case 1:
        return Event(node, [&](auto* a) { node->core.Changed(now_, a); });
      case 2:
        if (node->core.state() == State::kOver) *node = Node();
        return;
      case 3:
      case 4:
      case 5:
        return Event(node, [&](auto* a) { node->core.Passed(now_, a); });
      default:
        return Serve(node);
    }
  }

  template <typename F>
  void Event(Node* node, F&& event) {
    ElectionActions actions;
    const State before = node->core.state();
    event(&actions);
    for (const ElectionAction& a : actions) {
      if (const auto* call = std::get_if<StoreCall>(&a)) {
        EXPECT_FALSE(node->call || node->answer) << "two calls at a time";
        node->call = *call;
      } else if (const auto* lead = std::get_if<Lead>(&a)) {
        EXPECT_GT(lead->term, last_term_) << "terms must grow";
        last_term_ = lead->term;
        node->until = lead->until;
        ++leaders_;
      } else if (const auto* prolong = std::get_if<Prolong>(&a)) {
        EXPECT_EQ(before, State::kLeader);
        EXPECT_LT(now_, node->until) << "prolonged after its end";
        node->until = prolong->until;
      } else if (std::get_if<StepDown>(&a) != nullptr) {
        EXPECT_EQ(before, State::kLeader);
        node->until = {};
      }
    }
  }

  // The call reaches the store, or its answer reaches the node.
  void Serve(Node* node) {
    if (node->answer) {
      const StoreAnswer answer = *node->answer;
      node->answer.reset();
      return Event(node,
                   [&](auto* a) { node->core.Answered(now_, answer, a); });
    }
    if (!node->call) return;
    const StoreCall call = *node->call;
    node->call.reset();
    const uint32_t fate = Below(10);
    node->answer = CallFailed{"lost"};
    if (fate == 0) return;                        // the request
    if (fate == 1) return late_.push_back(call);  // it is handled later
    if (fate == 2) return static_cast<void>(Handle(call));  // the answer
    node->answer = Handle(call);
  }

  StoreAnswer Handle(const StoreCall& call) {
    const auto lease = leases_.find(call.lease);
    const bool alive = lease != leases_.end();
    switch (call.kind) {
      case Kind::kLook:
        return Seen{holder_};
      case Kind::kGrant:
        leases_[++last_lease_] = now_ + kTtl;
        return LeaseGranted{last_lease_, kTtl};
      case Kind::kClaim:
        if (!holder_ && !alive) return CallFailed{"no such lease"};
        if (!holder_) holder_ = Holder{"x", call.lease, ++revision_};
        return Seen{holder_};
      case Kind::kRenew:
        if (!alive) return LeaseRenewed{};
        lease->second = now_ + kTtl;
        return LeaseRenewed{kTtl};
      case Kind::kRevoke:
        if (alive) lease->second = now_;
        Expire();
        return LeaseRevoked{};
    }
    return CallFailed{"unknown"};
  }

  void Expire() {
    for (auto it = leases_.begin(); it != leases_.end();) {
      if (it->second > now_) {
        ++it;
        continue;
      }
      if (holder_ && holder_->lease == it->first) holder_.reset();
      it = leases_.erase(it);
    }
  }

  std::mt19937 random_;
  BootInstant now_{};
  std::vector<Node> nodes_;
  std::vector<StoreCall> late_;
  std::map<LeaseId, BootInstant> leases_;
  std::optional<Holder> holder_;
  LeaseId last_lease_ = 0;
  uint64_t revision_ = 0;
  uint64_t last_term_ = 0;
  int leaders_ = 0;
};

TEST(ElectionWorld, AtMostOneLeadsInAnyOrderOfEvents) {
  int leaders = 0;
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    World world(seed);
    world.Run();
    ASSERT_FALSE(HasFailure());
    leaders += world.leaders();
  }
  // The test is meaningful only if leaders come and go.
  EXPECT_GT(leaders, 1000);
}

}  // namespace
}  // namespace maypole::coordinator
