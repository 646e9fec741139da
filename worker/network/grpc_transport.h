// GrpcTransport: Transport over gRPC's bidirectional stream.
//
// Purpose: opens the stream, opens it again when it breaks (within
// resume_timeout, with growing pauses), and sends again what the coordinator
// has not acknowledged (common/wire/link.h). A Refused, a broken protocol or a
// coordinator that stays away ends the session with one sentence.
//
// Threads: one lives as long as the session and reads; one per stream writes
// and watches over the Welcome. The synchronous API allows one of each.
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

#include "common/program/tls.h"
#include "common/wire/link.h"
#include "proto/coordinator.grpc.pb.h"
#include "worker/core/limits.h"
#include "worker/network/transport.h"

namespace maypole::worker {

struct GrpcTransportOptions {
  std::string address;  // HOST:PORT
  std::string secret;
  TlsOptions tls;
  proto::ExecutorHello hello;  // without session and incarnation
  std::chrono::milliseconds resume_timeout{3000};
};

class GrpcTransport : public Transport {
 public:
  GrpcTransport(GrpcTransportOptions options, TransportCallbacks callbacks);
  ~GrpcTransport() override;

  uint64_t Send(proto::ExecutorMessage message) override;

 private:
  using Clock = std::chrono::steady_clock;
  using Stream = grpc::ClientReaderWriter<proto::ExecutorMessage,
                                          proto::CoordinatorMessage>;
  // How one stream has ended.
  struct End {
    bool final = false;     // no new one will do better
    bool welcomed = false;  // it had been up
    absl::Status status;
  };

  void Main();
  End OneStream(Clock::time_point deadline);
  End ReadStream(Stream* stream);
  // The first message of a stream. False: it is the end.
  bool Welcomed(const proto::CoordinatorMessage& first, End* end);
  // False: the coordinator breaks the protocol.
  bool Received(proto::CoordinatorMessage message, End* end);
  void Acknowledged(uint64_t sequence);
  void WriteStream(Stream* stream, grpc::ClientContext* context,
                   Clock::time_point deadline);
  // Waits; false if the transport is being closed.
  bool Pause(std::chrono::milliseconds time);
  // Takes up to kDiagnosisTime: not under the mutex. `reached`: there has been
  // a Welcome.
  absl::Status LostStatus(bool reached, const absl::Status& last) const;

  const GrpcTransportOptions options_;
  const TransportCallbacks callbacks_;
  std::unique_ptr<proto::Coordinator::Stub> stub_;
  uint64_t acknowledged_ = 0;  // what on_acknowledged was told; main_'s alone

  std::mutex mutex_;
  std::condition_variable changed_;
  Link<proto::ExecutorMessage> link_{kMaxUnacknowledged};
  std::deque<proto::ExecutorMessage> outgoing_;  // of the stream that is up
  std::string session_;                          // empty: no Welcome yet
  std::string incarnation_;
  bool up_ = false;        // a stream is welcomed
  bool ending_ = false;    // the stream has ended: its writer shall return
  bool closing_ = false;   // the destructor waits
  bool finished_ = false;  // Main() is about to return
  bool overflow_ = false;
  grpc::ClientContext* context_ = nullptr;
  std::thread main_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_NETWORK_GRPC_TRANSPORT_H_
