// GrpcTransport: a Transport over a bidirectional gRPC stream.
//
// Purpose: opens the stream, and reopens it when it breaks, with exponential
// backoff and jitter, as long as it takes; session.h has the rules of what is
// said on it. A Refused, a protocol violation, or a coordinator that was never
// reached within connect_timeout ends the session with one error message.
//
// Threads: the main thread lives as long as the session and reads; each stream
// has a thread that writes and enforces the deadline for Welcome. gRPC's
// synchronous API allows one reader and one writer per stream.
//
// Thread contract: as Transport's.
#ifndef MAYPOLE_WORKER_NETWORK_GRPC_TRANSPORT_H_
#define MAYPOLE_WORKER_NETWORK_GRPC_TRANSPORT_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
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
  // HOST:PORT; at least one. Of several coordinators one leads: they are called
  // in turn until one welcomes.
  std::vector<std::string> addresses;
  std::string secret;
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
  using Stream = grpc::ClientReaderWriter<proto::ExecutorMessage,
                                          proto::CoordinatorMessage>;
  // How one stream has ended.
  struct End {
    bool final = false;     // a new stream would fail, too
    bool welcomed = false;  // the coordinator had sent Welcome
    absl::Status status;
  };

  void Main();
  End OneStream(Clock::time_point deadline);
  End ReadStream(Stream* stream);
  // Handles the first message of a stream. Returns false if it is not Welcome.
  bool Welcomed(const proto::CoordinatorMessage& first, End* end);
  // Returns false if the coordinator has violated the protocol or refused us.
  bool Received(proto::CoordinatorMessage message, End* end);
  void Acknowledged(uint64_t sequence);
  // Acknowledges what was received, if that must not wait. With the lock.
  void AcknowledgeIfUrgent();
  void WriteStream(Stream* stream, grpc::ClientContext* context,
                   Clock::time_point deadline);
  // Waits for the writer's next work, which may be an acknowledgement.
  void AwaitOutgoing(std::unique_lock<std::mutex>& lock);
  // Waits; returns false if the transport is being closed.
  bool Pause(std::chrono::milliseconds time);
  // The coordinator was never reached. Takes up to kDiagnosisTime, so do not
  // hold the mutex.
  absl::Status UnreachableStatus(const absl::Status& last) const;

  const GrpcTransportOptions options_;
  const TransportCallbacks callbacks_;
  CoordinatorChoice choice_;  // used by main_ only

  // Held from the receipt of a message to its callback, so that callbacks come
  // in the order of the messages. Taken before mutex_.
  std::mutex delivery_;
  uint64_t acknowledged_ = 0;  // passed to on_acknowledged

  std::mutex mutex_;
  std::condition_variable changed_;
  CoordinatorSession session_;
  std::deque<proto::ExecutorMessage> outgoing_;  // for the current stream
  bool idle_ = false;      // the writer must be woken when an ack becomes due
  bool up_ = false;        // the stream has got Welcome
  bool ending_ = false;    // the stream has ended, so its writer must return
  bool closing_ = false;   // the destructor waits
  bool finished_ = false;  // Main() is about to return
  grpc::ClientContext* context_ = nullptr;
  std::thread main_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_NETWORK_GRPC_TRANSPORT_H_
