// SessionStream: a gRPC stream of an executor, without a thread of its own.
//
// Purpose: passes the executor's messages to the Hub, and writes the Hub's
// messages one after the other. A few gRPC callback threads serve all streams:
// with two threads per stream, a job of 1,024 nodes had 2,048 threads, and
// waking them cost more than all else. The core must never wait for a peer's
// network, and what it decides under a job's lock must not be written under
// that lock: so the Hub calls Push() under it, and Flush() when it is released.
//
//   return SessionStream::Start(context, hub, may_join);    // in the service's
//                                                           // method
//
//   state      reached by                       ends when
//   open       Start()                          Close(), or the executor has
//                                               half-closed or has vanished
//   closing    the above                        the queue is written; the
//                                               stream gets its status
//   finished   Finish() of gRPC                 OnDone(): the Hub forgets it
//
// The queue is bounded: the link limits the numbered messages, Push() merges
// bare acks, and there is only one of every other message per stream.
//
// Thread contract: any thread may call Push(), Close() and Flush(), none of
// which waits; gRPC calls the On*() methods.
//
// Invariants: at most one read and one write are outstanding. If the peer has
// not read the rest kCloseGrace after Close(), the call is cancelled. With a
// Leadership, each write is preceded by a check of Leads(); if it is false, the
// call is cancelled. The stream owns itself until OnDone(), and the Hub keeps
// it until Remove().
#ifndef MAYPOLE_COORDINATOR_SERVICE_SESSION_STREAM_H_
#define MAYPOLE_COORDINATOR_SERVICE_SESSION_STREAM_H_

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/wire/versions.h"
#include "coordinator/core/actions.h"
#include "coordinator/service/hub.h"
#include "google/protobuf/arena.h"
#include "grpcpp/alarm.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"

namespace maypole::coordinator {

inline constexpr std::chrono::milliseconds kCloseGrace(500);

class SessionStream final
    : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  using Reactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

  // Called for each hello: OK, or why the caller may not join this job.
  using MayJoin = std::function<absl::Status(const std::string& job)>;

  // `hub` must outlive the stream.
  static Reactor* Start(grpc::CallbackServerContext* context, Hub* hub,
                        MayJoin may_join);

  // Queues the message, in the core's order.
  void Push(Outgoing message);
  // Ends the stream with this status after writing all pushed messages.
  // Messages pushed later are dropped.
  void Close(absl::Status status);
  // Starts to write what was pushed, and to end the stream if it was closed.
  void Flush();

 private:
  SessionStream(grpc::CallbackServerContext* context, Hub* hub,
                MayJoin may_join)
      : context_(context), hub_(hub), may_join_(std::move(may_join)) {}

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // The caller holds the lock.
  absl::Status UnreadableStatus(size_t bytes) const;
  void BeginToClose(absl::Status status);
  void Continue();

  grpc::CallbackServerContext* const context_;
  Hub* const hub_;
  const MayJoin may_join_;
  StreamId id_ = 0;
  // The message that is being handled; reused, so that a message costs few
  // allocations.
  google::protobuf::Arena arena_;
  grpc::ByteBuffer incoming_;
  VersionRange versions_;  // of the executor; none before its hello

  std::mutex mutex_;
  std::shared_ptr<SessionStream> self_;  // until OnDone()
  std::deque<Outgoing> queue_;
  grpc::ByteBuffer written_;  // the message that is being written
  bool writing_ = false;
  bool closing_ = false;
  bool cancelled_ = false;
  bool finished_ = false;
  bool done_ = false;
  absl::Status status_;
  grpc::Alarm alarm_;  // kCloseGrace
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_SESSION_STREAM_H_
