// StreamWriter: the sending half of one gRPC stream, with a thread of its own.
//
// Purpose: the core must never wait for a peer's network; it pushes, this
// writes. The handler thread reads meanwhile.
//
//   StreamWriter writer(context, stream);
//   while (!writer.closing() && stream->Read(&m)) ...;
//   return writer.Finish();
//
// The queue is bounded by its users: numbered messages by the link's limit,
// bare acks are merged here, all others are one per stream.
//
// Thread contract: Push and Close from any thread, also when Finish has
// returned (they do nothing then); Finish once, by the handler thread.
//
// Invariants: after Close nothing more is taken. When the peer does not end its
// half within kCloseGrace after the last message, the call is cancelled.
#ifndef MAYPOLE_COORDINATOR_SERVICE_STREAM_WRITER_H_
#define MAYPOLE_COORDINATOR_SERVICE_STREAM_WRITER_H_

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"
#include "grpcpp/support/sync_stream.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

inline constexpr std::chrono::milliseconds kCloseGrace(500);

class StreamWriter {
 public:
  using Stream = grpc::ServerReaderWriter<proto::CoordinatorMessage,
                                          proto::ExecutorMessage>;

  // Both outlive the writer.
  StreamWriter(grpc::ServerContext* context, Stream* stream);
  StreamWriter(const StreamWriter&) = delete;
  StreamWriter& operator=(const StreamWriter&) = delete;

  void Push(proto::CoordinatorMessage message);
  // Ends the stream with the status when all that was pushed is out.
  void Close(absl::Status status);
  bool closing() const;

  // The handler reads no more. Writes what is left, stops the thread and
  // returns the status the stream ends with.
  grpc::Status Finish();

 private:
  void Run();
  // The next message to write; false: there will be none.
  bool Next(proto::CoordinatorMessage* message);

  grpc::ServerContext* const context_;
  Stream* const stream_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<proto::CoordinatorMessage> queue_;
  absl::Status status_;
  bool closing_ = false;
  bool reader_done_ = false;
  bool writer_done_ = false;
  std::thread thread_;  // last: starts when all else is there
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_STREAM_WRITER_H_
