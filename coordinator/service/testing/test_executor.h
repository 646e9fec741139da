// TestExecutor: a real gRPC client of the coordinator, for tests.
//
// Thread contract: one thread calls the methods; a reader thread fills the
// inbox. Waits have a time limit and fail the test when it passes.
#ifndef MAYPOLE_COORDINATOR_SERVICE_TESTING_TEST_EXECUTOR_H_
#define MAYPOLE_COORDINATOR_SERVICE_TESTING_TEST_EXECUTOR_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/wire/link.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "proto/coordinator.grpc.pb.h"

namespace maypole::coordinator {

class TestExecutor {
 public:
  TestExecutor(const std::string& address, std::string job, std::string node,
               std::string secret = "");
  ~TestExecutor();

  // Opens a stream; if there is a session, resumes it and resends. False if the
  // stream ended before a welcome: see AwaitEnd() and refused().
  bool Connect();
  // Cuts the stream as a network would.
  void Break();
  // Half-closes and waits for the stream's status.
  grpc::Status Finish();

  void Ready(uint32_t size, const std::vector<uint32_t>& ranks);
  void Send(proto::ExecutorMessage payload);

  using Message = proto::CoordinatorMessage;
  // Waits for a payload for which fits() is true, and returns the first one.
  Message Await(const std::function<bool(const Message&)>& fits);
  // Waits until the stream has ended, and returns its status.
  grpc::Status AwaitEnd();

  std::vector<Message> inbox() const;
  proto::Refused refused() const;
  uint64_t term() const;  // of the last welcome
  size_t unacknowledged() const;

 private:
  using Stream = grpc::ClientReaderWriter<proto::ExecutorMessage, Message>;
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<Stream> stream;
    std::thread reader;
  };

  void Read(Stream* stream);
  void Drop();

  const std::string job_;
  const std::string node_;
  const std::string secret_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<proto::Coordinator::Stub> stub_;
  std::unique_ptr<Call> call_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Link<proto::ExecutorMessage> link_{1000};
  std::vector<Message> inbox_;
  std::string session_;
  std::string incarnation_;
  proto::Refused refused_;
  uint64_t term_ = 0;
  bool welcome_ = false;
  bool ended_ = true;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_TESTING_TEST_EXECUTOR_H_
