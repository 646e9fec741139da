// coordinator_bench: measures how long a coordinator takes to order an
// operation of one job while it serves others.
//
// Purpose: --jobs jobs of two nodes each run on one coordinator; all but the
// first wait for an operation that only one of their nodes has reported. In the
// first job both nodes report an operation and read the Execute, --rounds
// times. Prints one line: the median time of a round, in microseconds.
//
//   coordinator_bench --address=127.0.0.1:4001 --jobs=256 --rounds=2000
//
// coordinator_bench.py compares coordinators with it.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "common/board/urgent.h"
#include "common/limits.h"
#include "common/program/process.h"
#include "common/types.h"
#include "common/wire/link.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "proto/coordinator.grpc.pb.h"

ABSL_FLAG(std::string, address, "", "HOST:PORT of the coordinator.");
ABSL_FLAG(int, jobs, 1, "Jobs on the coordinator.");
ABSL_FLAG(int, rounds, 2000, "Operations that are timed.");

namespace maypole {
namespace {

void Expect(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "coordinator_bench: %s\n", what);
  std::exit(1);
}

// One node of a job, with one rank, over a connection of its own.
class Node {
 public:
  Node(const std::string& job, uint32_t rank) : rank_(rank) {
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = proto::Coordinator::NewStub(
        grpc::CreateCustomChannel(absl::GetFlag(FLAGS_address),
                                  grpc::InsecureChannelCredentials(), args));
    stream_ = stub_->Session(&context_);
    proto::ExecutorMessage hello;
    hello.mutable_hello()->set_protocol_version(kProtocolVersion);
    hello.mutable_hello()->set_newest_version(kProtocolVersion);
    hello.mutable_hello()->set_job(job);
    hello.mutable_hello()->set_node("n" + std::to_string(rank));
    Expect(stream_->Write(hello), "the coordinator hangs up");
    Expect(Read().has_welcome(), "the coordinator does not welcome a node");
    proto::ExecutorMessage ready;
    ready.mutable_ranks_ready()->set_size(2);
    ready.mutable_ranks_ready()->set_chunk_bytes(4096);
    ready.mutable_ranks_ready()->add_ranks(rank);
    Say(std::move(ready));
  }

  void AwaitStart() {
    while (!Read().has_epoch_start()) {
    }
  }

  // The rank waits for this generation of the job's one operation.
  void Report(uint32_t generation) {
    proto::ExecutorMessage m;
    m.set_epoch(1);
    proto::PresentOperation* op = m.mutable_presence()->add_operations();
    op->mutable_identity()->set_kind(static_cast<uint32_t>(Kind::kAllreduce));
    op->mutable_identity()->set_name("gradient");
    op->set_generation(generation);
    op->set_urgency(static_cast<uint32_t>(Urgency::kImmediate));
    proto::LocalSignature* s = op->add_signatures();
    s->add_ranks(rank_);
    s->set_kind(static_cast<uint32_t>(Kind::kAllreduce));
    s->set_dtype(static_cast<uint32_t>(DType::kFloat32));
    s->set_prescale(1);
    s->set_postscale(1);
    s->add_shape(1000);
    Say(std::move(m));
  }

  void AwaitRun() {
    while (!Read().has_execute()) {
    }
  }

 private:
  void Say(proto::ExecutorMessage message) {
    const proto::ExecutorMessage* numbered = link_.Push(std::move(message));
    Expect(numbered != nullptr, "the coordinator does not acknowledge");
    Expect(stream_->Write(*numbered), "the coordinator hangs up");
  }

  const proto::CoordinatorMessage& Read() {
    Expect(stream_->Read(&message_), "the coordinator hangs up");
    link_.OnReceived(message_.sequence(), message_.acknowledged());
    return message_;
  }

  const uint32_t rank_;
  std::unique_ptr<proto::Coordinator::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<proto::ExecutorMessage,
                                           proto::CoordinatorMessage>>
      stream_;
  Link<proto::ExecutorMessage> link_{1000};
  proto::CoordinatorMessage message_;
};

struct Job {
  explicit Job(int number)
      : a("job" + std::to_string(number), 0),
        b("job" + std::to_string(number), 1) {
    a.AwaitStart();
    b.AwaitStart();
  }
  Node a, b;
};

double MedianRound(Job* job, int rounds) {
  std::vector<double> micros;
  for (int i = 1; i <= rounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    job->a.Report(static_cast<uint32_t>(i));
    job->b.Report(static_cast<uint32_t>(i));
    job->a.AwaitRun();
    job->b.AwaitRun();
    micros.push_back(std::chrono::duration<double, std::micro>(
                         std::chrono::steady_clock::now() - begin)
                         .count());
  }
  std::nth_element(micros.begin(), micros.begin() + rounds / 2, micros.end());
  return micros[rounds / 2];
}

int Main() {
  RaiseOpenFiles();
  std::vector<std::unique_ptr<Job>> jobs;
  for (int i = 0; i < absl::GetFlag(FLAGS_jobs); ++i) {
    jobs.push_back(std::make_unique<Job>(i));
    if (i > 0) jobs.back()->a.Report(1);
  }
  std::printf("%.1f\n",
              MedianRound(jobs.front().get(), absl::GetFlag(FLAGS_rounds)));
  std::fflush(stdout);
  std::_Exit(0);  // the streams end with the process
}

}  // namespace
}  // namespace maypole

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return maypole::Main();
}
