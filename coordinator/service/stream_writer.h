// StreamWriter: the sending half of one gRPC stream, with its own thread.
//
// Purpose: the core must never wait for a peer's network. So it pushes messages
// into a queue, and the StreamWriter's thread writes them, while the handler
// thread reads.
//
//   StreamWriter writer(context, stream);
//   while (!writer.closing() && stream->Read(&m)) ...;
//   return writer.Finish();
//
// The queue is bounded: the link limits the numbered messages, Push() merges
// bare acks, and there is only one of every other message per stream.
//
// Thread contract: any thread may call Push() and Close(), also after Finish()
// has returned (then they do nothing). The handler thread calls Finish(), once.
//
// Invariants: after Close() no message is accepted. If the peer does not end
// its half within kCloseGrace after the last message, the call is cancelled.
// With a Leadership, nothing is written unless Leads() has just said yes; else
// the call is cancelled.
#ifndef MAYPOLE_COORDINATOR_SERVICE_STREAM_WRITER_H_
#define MAYPOLE_COORDINATOR_SERVICE_STREAM_WRITER_H_

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "absl/status/status.h"
#include "coordinator/election/leadership.h"
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

  // The pointers must outlive the writer. leadership: null if this coordinator
  // is the only one.
  StreamWriter(grpc::ServerContext* context, Stream* stream,
               const Leadership* leadership = nullptr);
  StreamWriter(const StreamWriter&) = delete;
  StreamWriter& operator=(const StreamWriter&) = delete;

  void Push(proto::CoordinatorMessage message);
  // Ends the stream with this status after writing all pushed messages.
  void Close(absl::Status status);
  bool closing() const;

  // Called when the handler has stopped reading. Writes the remaining messages,
  // stops the thread and returns the status with which the stream ends.
  grpc::Status Finish();

 private:
  void Run();
  bool Write(const proto::CoordinatorMessage& message);
  // Waits for the next message to write; false if there will be none.
  bool Next(proto::CoordinatorMessage* message);

  grpc::ServerContext* const context_;
  Stream* const stream_;
  const Leadership* const leadership_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<proto::CoordinatorMessage> queue_;
  absl::Status status_;
  bool closing_ = false;
  bool reader_done_ = false;
  bool writer_done_ = false;
  std::thread thread_;  // last, so that it starts after all else is constructed
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_STREAM_WRITER_H_
