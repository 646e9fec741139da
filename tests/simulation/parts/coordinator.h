// Coordinator: the real core, behind simulated streams.
//
// Purpose: simulates the network between executors and the coordinator, and the
// coordinator's process. Messages of a stream are delayed but stay in order;
// streams break, at different times for the two ends; the process dies and is
// restarted as another incarnation without state.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_SIMULATION_PARTS_COORDINATOR_H_
#define MAYPOLE_TESTS_SIMULATION_PARTS_COORDINATOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/core/coordinator_core.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"
#include "tests/simulation/stage.h"

namespace maypole::simulation {

// The executor's end of a stream.
class StreamUser {
 public:
  virtual ~StreamUser() = default;
  virtual void OnStreamMessage(const proto::CoordinatorMessage& message) = 0;
  // Called last.
  virtual void OnStreamEnded(const absl::Status& status) = 0;
};

// A gRPC stream. A closed end gets no more messages.
struct Stream {
  coordinator::StreamId id = 0;
  int node = 0;
  std::weak_ptr<StreamUser> user;
  bool coordinator_open = false;  // the coordinator knows of it
  bool user_open = true;
  bool broken = false;  // nothing gets through any more
  int64_t last_up = 0;  // when the last message arrives
  int64_t last_down = 0;
};

class Coordinator {
 public:
  Coordinator(Stage* stage, const coordinator::Config& config, int nodes);

  // --- For executors ---------------------------------------------------------
  std::shared_ptr<Stream> Connect(int node, std::weak_ptr<StreamUser> user);
  void Write(const std::shared_ptr<Stream>& stream,
             const proto::ExecutorMessage& message);
  // Half-closes: the executor will not resume.
  void Finish(const std::shared_ptr<Stream>& stream);
  // The executor's process has ended.
  void Drop(const std::shared_ptr<Stream>& stream);

  // --- Faults
  // ------------------------------------------------------------------
  void Kill();
  void Restart();
  bool alive() const { return core_ != nullptr; }
  // Breaks the node's streams, and all that it opens before Heal().
  void Cut(int node);
  void Heal(int node);

  // A key, unique in a run, of the last epoch that was announced to the node,
  // by whatever incarnation.
  const std::string& EpochKey(int node) const {
    return epoch_keys_[static_cast<size_t>(node)];
  }
  coordinator::Totals totals() const { return core_->totals(); }
  std::string StatusText() const;

  // --- For the operator; requires alive() ------------------------------------
  absl::StatusOr<proto::TimelineStatus> RecordTimeline(bool stop);
  // Nullopt: it is not known.
  std::optional<proto::JobStatus> JobNow() const;
  // How often the job was not known any more.
  int lives() const { return incarnations_ + forgotten_; }

 private:
  bool Through(const Stream& stream) const;
  void Break(const std::shared_ptr<Stream>& stream, int64_t coordinator_notices,
             int64_t user_notices);
  void EndForUser(const std::shared_ptr<Stream>& stream, int64_t delay,
                  const absl::Status& status);
  void Carry(coordinator::Actions* actions);
  void Send(const coordinator::Send& send);
  void Close(const coordinator::Close& close);
  void Note(const std::string& line);
  void AskForTime();
  void OnTimer();
  coordinator::Time Now() const {
    return coordinator::Time(stage_->scheduler.now());
  }

  Stage* const stage_;
  const coordinator::Config config_;
  std::unique_ptr<coordinator::CoordinatorCore> core_;
  const std::function<void(coordinator::Actions*)> carry_ =
      [this](coordinator::Actions* actions) { Carry(actions); };
  std::shared_ptr<int> process_;  // the owner of the process's events
  std::string incarnation_;
  int incarnations_ = 0;
  int forgotten_ = 0;      // how often a coordinator has forgotten the job
  std::vector<bool> cut_;  // by node
  Turn timer_;
  // By what all nodes are told of an epoch, since the job was created: the pids
  // tell epochs of one number apart. A coordinator that takes the job over goes
  // on with the epochs before.
  std::map<std::string, std::string> epochs_, epochs_before_;
  int last_epoch_ = 0;
  std::vector<std::string> epoch_keys_;  // by node
  coordinator::StreamId last_stream_ = 0;
  std::map<coordinator::StreamId, std::shared_ptr<Stream>> streams_;
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_PARTS_COORDINATOR_H_
