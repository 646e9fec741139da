// executor_stream ADDRESS JOB NODE: an executor's raw stream to a coordinator,
// which a test controls.
//
// Sends Hello, and prints a line for each message that it receives ("welcome
// TERM", "epoch_start", "ack" and so on) and one when the stream has ended
// ("end CODE TEXT"); then the program ends. A line "ready SIZE RANK" on stdin
// sends RanksReady. The end of stdin ends the stream.
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <string>
#include <thread>

#include "common/limits.h"
#include "common/wire/link.h"
#include "grpcpp/create_channel.h"
#include "proto/coordinator.grpc.pb.h"

namespace maypole {
namespace {

constexpr size_t kMaxUnacknowledged = 16;

std::string Line(const proto::CoordinatorMessage& message) {
  if (message.has_welcome()) {
    return "welcome " + std::to_string(message.welcome().term());
  }
  if (message.has_epoch_start()) return "epoch_start";
  if (message.has_epoch_end()) return "epoch_end";
  return message.payload_case() == message.PAYLOAD_NOT_SET
             ? "ack"
             : "payload " + std::to_string(message.payload_case());
}

void Say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

int Main(const std::string& address, const std::string& job,
         const std::string& node) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto stub = proto::Coordinator::NewStub(grpc::CreateCustomChannel(
      address, grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  const auto stream = stub->Session(&context);
  Link<proto::ExecutorMessage> link(kMaxUnacknowledged);
  proto::ExecutorMessage hello;
  hello.mutable_hello()->set_protocol_version(kProtocolVersion);
  hello.mutable_hello()->set_newest_version(kProtocolVersion);
  hello.mutable_hello()->set_job(job);
  hello.mutable_hello()->set_node(node);
  stream->Write(hello);

  std::thread commands([&] {
    std::string word;
    uint32_t size = 0, rank = 0;
    while (std::cin >> word >> size >> rank) {
      proto::ExecutorMessage ready;
      ready.mutable_ranks_ready()->set_size(size);
      ready.mutable_ranks_ready()->set_chunk_bytes(4096);
      ready.mutable_ranks_ready()->add_ranks(rank);
      stream->Write(*link.Push(std::move(ready)));
    }
    context.TryCancel();
  });
  commands.detach();  // the process ends with the stream

  proto::CoordinatorMessage message;
  while (stream->Read(&message)) Say(Line(message));
  const grpc::Status status = stream->Finish();
  Say("end " + std::to_string(status.error_code()) + " " +
      status.error_message());
  std::_Exit(0);
}

}  // namespace
}  // namespace maypole

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: executor_stream ADDRESS JOB NODE\n", stderr);
    return 2;
  }
  return maypole::Main(argv[1], argv[2], argv[3]);
}
