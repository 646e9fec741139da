// GrpcTransport: a Transport over a bidirectional gRPC stream.
//
// Purpose: opens the stream, and reopens it when it breaks, with exponential
// backoff and jitter, as long as it takes; session.h has the rules of what is
// said on it. A Refused, a protocol violation, or a coordinator that was never
// reached within connect_timeout ends the session with one error message. For
// connect_timeout it also waits for another executor of the node to end.
//
// Threads: the main thread lives as long as the session; it waits for the
// events of gRPC's completion queue, reads, and acknowledges. Send() writes on
// its caller's thread, unless a write is outstanding already. No other thread
// polls for gRPC: events wake all threads that do, so its synchronous API, with
// a thread for each direction, and its callback threads take twice the CPU
// time.
//
// Thread contract: as Transport's.
#ifndef MAYPOLE_WORKER_NETWORK_GRPC_TRANSPORT_H_
#define MAYPOLE_WORKER_NETWORK_GRPC_TRANSPORT_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/program/tls.h"
#include "proto/coordinator.grpc.pb.h"
#include "worker/core/limits.h"
#include "worker/network/coordinator_choice.h"
#include "worker/network/session.h"
#include "worker/network/transport.h"

namespace maypole::worker {

struct GrpcTransportOptions {
  // The coordinators, which are called in turn until one welcomes. The next
  // transport of the executor has the same, so it joins no older leader either.
  std::shared_ptr<CoordinatorChoice> coordinators;
  std::string credential;  // common/program/job_ticket.h; empty: none
  TlsOptions tls;
  proto::ExecutorHello hello;  // session and incarnation are filled in here
  // For the first contact; and for each later try to connect.
  std::chrono::milliseconds connect_timeout{3000};
};

class GrpcTransport : public Transport {
 public:
  GrpcTransport(GrpcTransportOptions options, TransportCallbacks callbacks);
  ~GrpcTransport() override;

  uint64_t Send(proto::ExecutorMessage message) override;
  void TakeRelayed(const std::string& incarnation,
                   proto::CoordinatorMessage message) override;

 private:
  using Clock = std::chrono::steady_clock;
  using Stream = grpc::ClientAsyncReaderWriter<proto::ExecutorMessage,
                                               proto::CoordinatorMessage>;
  // How one stream has ended.
  struct End {
    bool final = false;     // a new stream would fail, too
    bool welcomed = false;  // the coordinator had sent Welcome
    // We have ended it, because nothing had come of it in time: the status says
    // nothing about the coordinator.
    bool timed_out = false;
    absl::Status status;
  };
  struct Call;  // an open stream; used by main_
  enum class Event : intptr_t;

  void Main();
  End OneStream(Clock::time_point deadline);
  // Waits for the next event of the stream; false: there are none any more.
  bool Step(Call* call, Clock::time_point deadline, End* end);
  void Handle(Event event, bool ok, Call* call, End* end);
  void OnStarted(Call* call, bool ok);
  void OnRead(Call* call, bool ok, End* end);
  // The stream has ended, or must: nothing is written from now on.
  void Finish(Call* call);
  // Handles the first message of a stream. Returns false if it is not Welcome.
  bool Welcomed(const proto::CoordinatorMessage& first, End* end);
  // Returns false if the coordinator has violated the protocol or refused us.
  bool Received(proto::CoordinatorMessage message, End* end);
  void Acknowledged(uint64_t sequence);
  // Acknowledges what was received, if that must not wait. With the lock.
  void AcknowledgeIfUrgent();
  // Does what is due by now.
  void OnTime(Call* call, Clock::time_point deadline);
  // Writes the next message, or ends the sending half when the transport is
  // being closed, unless a write is outstanding. With the lock.
  void Write();
  // Waits; returns false if the transport is being closed.
  bool Pause(std::chrono::milliseconds time);
  // The coordinator was never reached. Takes up to kDiagnosisTime, so do not
  // hold the mutex.
  absl::Status UnreachableStatus(const absl::Status& last) const;
  // Why the session cannot go on, if it cannot.
  absl::Status Fault() const;

  const GrpcTransportOptions options_;
  const TransportCallbacks callbacks_;
  CoordinatorChoice& choice_;  // options_.coordinators; used by main_ only

  // Held from the receipt of a message to its callback, so that callbacks come
  // in the order of the messages. Taken before mutex_.
  std::mutex delivery_;
  uint64_t acknowledged_ = 0;  // passed to on_acknowledged

  std::mutex mutex_;
  std::condition_variable changed_;
  CoordinatorSession session_;
  std::deque<proto::ExecutorMessage> outgoing_;  // for the current stream
  Call* call_ = nullptr;                         // that can be written to
  bool writing_ = false;                         // a write is outstanding
  bool half_closed_ = false;
  // Since when an acknowledgement is due.
  std::optional<Clock::time_point> ack_due_since_;
  bool up_ = false;        // the stream has got Welcome
  bool closing_ = false;   // the destructor waits
  bool finished_ = false;  // Main() is about to return
  grpc::ClientContext* context_ = nullptr;
  std::thread main_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_NETWORK_GRPC_TRANSPORT_H_
