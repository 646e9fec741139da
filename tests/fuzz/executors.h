// Coordinated: the coordinator's core with executors that a Feed plays.
//
// Purpose: each executor keeps the state of an honest one (its stream, its
// numbers, its epoch, the ids of operations, what it has reported), so that
// messages reach the states behind the checks; it also makes deliberate faults.
// Every action of the core is checked: streams are open, numbers have no gaps,
// runs are in order, each presence gets one answer, texts are bounded, and the
// executor of an undisturbed job gets no messages.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_FUZZ_EXECUTORS_H_
#define MAYPOLE_TESTS_FUZZ_EXECUTORS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/wire/link.h"
#include "coordinator/core/coordinator_core.h"
#include "proto/coordinator.pb.h"
#include "tests/fuzz/feed.h"

namespace maypole::fuzz {

struct Player {
  std::string job;
  std::string node;
  std::string token;
  uint32_t index = 0;  // of the node in its job
  bool undisturbed = false;
  bool lied = false;                 // so its answers cannot be predicted
  coordinator::StreamId stream = 0;  // 0: broken, or ended
  std::string session;               // empty: it has none (any more)
  std::string incarnation;
  Link<proto::ExecutorMessage> link{4096};

  uint64_t epoch = 0;  // as told last
  proto::EpochStart start;
  uint64_t round = 0;
  uint64_t handled = 0;
  uint64_t confirm = 0;
  uint64_t last_run = 0;
  bool over = false;          // the epoch has ended
  uint64_t schedule = 0;      // that it follows; 0: none
  uint32_t timeline = 0;      // number of the last one
  uint32_t communicator = 0;  // that needs an id of this node; 0: none
  int64_t stats_ms = 0;
  // Of the epoch, the last one at the end: an identity, an id, a generation.
  std::vector<std::tuple<proto::Identity, uint32_t, uint32_t>> executed;
  std::vector<proto::ElasticMember> waiting;
  bool elastic = false;
  // Of the epoch: operations by "set/kind/name".
  std::map<std::string, uint32_t> ids;
  std::map<std::string, uint32_t> generations;
  std::map<std::string, proto::Identity> identities;
  std::set<std::pair<std::string, uint32_t>> unanswered;
  std::map<uint32_t, std::vector<uint32_t>> sets;
  std::map<uint32_t, uint32_t> set_requests, joins;  // by rank

  std::vector<uint32_t> OwnRanks() const;
};

// What all executors of a job say of an epoch to a coordinator that replaces
// another one: a check that is missing shows only if no other one refuses them.
struct Account {
  uint64_t schedule = 0;  // which all follow; 0: none
  uint32_t fault = 0;     // one of Falsify(), or none
  uint64_t value = 0;     // of the fault
};

// Which faults of Falsify() no input has made all executors of a job tell, with
// 0 and with another value, and nothing else that is wrong.
std::string MissingFaults();

class Coordinated {
 public:
  explicit Coordinated(Feed* feed);

  void Event();
  // Checks that the undisturbed job is as it was, then stops the coordinator.
  void Finish();

 private:
  Player& Any();
  // All ranks of the job do the same, so that actions that need all happen.
  void Together();
  void Open(Player* p, bool resume);
  // A new process takes the player's place.
  void Renew(Player* p);
  void Break(Player* p);
  // Numbers and sends the message; sometimes with wrong numbers.
  void Say(Player* p, proto::ExecutorMessage message, bool honest = false);
  void Deliver(Player* p, const proto::ExecutorMessage& message);
  void Pass();
  void Operator();
  void Carry(const coordinator::Actions& actions);
  void Receive(Player* p, const proto::CoordinatorMessage& message);
  void Payload(Player* p, const proto::CoordinatorMessage& message);
  void ReceiveRuns(Player* p, const proto::Execute& execute);
  void Answered(Player* p, const std::string& key, uint32_t generation);

  // Messages (executor_messages.cc).
  proto::ExecutorMessage Make(Player* p);
  proto::ExecutorMessage Ready(Player* p);
  proto::ExecutorMessage ElasticReady(Player* p);
  proto::ExecutorMessage Endpoint(Player* p);
  proto::ExecutorMessage Presence(Player* p);
  void AddPresent(Player* p, const proto::Identity& identity,
                  proto::Presence* presence);
  void AddUrgent(Player* p, proto::Presence* presence);
  void AddSignatures(Player* p, uint32_t kind, uint32_t set,
                     proto::PresentOperation* op);
  proto::ExecutorMessage SetRequest(Player* p, uint32_t rank);
  proto::ExecutorMessage Join(Player* p, uint32_t rank, bool settled);
  proto::ExecutorMessage Late(Player* p);
  proto::ExecutorMessage Blocked(Player* p);
  proto::ExecutorMessage Retire(Player* p);
  proto::ExecutorMessage Other(Player* p);
  proto::ExecutorMessage ScheduleEnded(Player* p);
  proto::ExecutorMessage RankGpu(Player* p);
  proto::ExecutorMessage CommunicatorId(Player* p);
  proto::ExecutorMessage Results(Player* p);
  proto::ExecutorMessage Timeline(Player* p, uint32_t what);
  proto::ExecutorMessage NodeStats(Player* p);
  // All nodes take equal steps, until they get a schedule; with GPUs, a
  // communicator; with checksums, they report results.
  void Freeze();
  proto::ExecutorMessage Raw();
  // What another coordinator has known (executors_recovery.cc): all players but
  // the undisturbed one come from it.
  void Recover();
  Account MakeAccount();
  proto::ExecutorMessage NodeState(Player* p, const Account& account);
  // In parts, if it is long enough.
  void SayState(Player* p, const proto::ExecutorMessage& message);
  void AddKnown(proto::NodeState* state);
  static void Falsify(const Account& account, proto::NodeState* state);
  uint64_t Epoch(const Player& p);
  uint32_t Rank(const Player& p);
  std::string Name();
  void Identity(proto::Identity* out);

  Feed& feed_;
  coordinator::Time now_ = std::chrono::seconds(1000);
  coordinator::CoordinatorCore core_;
  const std::function<void(coordinator::Actions*)> carry_ =
      [this](coordinator::Actions* actions) { Carry(*actions); };
  std::deque<Player> players_;
  std::map<coordinator::StreamId, Player*> streams_;
  coordinator::StreamId last_stream_ = 0;
  size_t opened_ = 0;  // sessions asked for
  uint64_t last_client_ = 0;
  uint32_t checksums_ = 0;  // ChecksumMode that the ranks want
  bool gpus_ = false;       // tensors are on GPUs
  Player* undisturbed_ = nullptr;
  uint64_t undisturbed_heard_ = 0;
};

}  // namespace maypole::fuzz

#endif  // MAYPOLE_TESTS_FUZZ_EXECUTORS_H_
