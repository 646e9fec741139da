// contest_gloo: Gloo's ring allreduce over TCP, as a contestant. See contest.h.
//
// The environment also sets BENCH_RANK, BENCH_SIZE, BENCH_HOST (the address to
// listen on) and BENCH_STORE (an empty directory, the same for all ranks).
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/attr.h>
#include <gloo/transport/tcp/device.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>

#include "tests/bench/contest/contest.h"

namespace maypole::bench {
namespace {

class GlooReducer : public Reducer {
 public:
  GlooReducer(int rank, int size, const std::string& host,
              const std::string& store)
      : context_(std::make_shared<gloo::rendezvous::Context>(rank, size)) {
    gloo::rendezvous::FileStore files(store);
    gloo::transport::tcp::attr attr;
    attr.hostname = host;
    auto device = gloo::transport::tcp::CreateDevice(attr);
    context_->connectFullMesh(files, device);
  }

  int rank() const override { return context_->rank; }
  int size() const override { return context_->size; }

  Status Allreduce(const std::vector<Buffer>& buffers) override {
    try {
      for (auto b = buffers.rbegin(); b != buffers.rend(); ++b) Reduce(*b);
    } catch (const std::exception& e) {
      return Status(Code::kInternal,
                    std::string("gloo::allreduce: ") + e.what());
    }
    return Status();
  }

 private:
  void Reduce(const Buffer& buffer) {
    gloo::AllreduceOptions options(context_);
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, size_t)>(
            &gloo::sum<float>));
    options.setOutput(buffer.data.data(), buffer.data.size());
    gloo::allreduce(options);
  }

  std::shared_ptr<gloo::rendezvous::Context> context_;
};

int Main() {
  std::string rank, size, host, store;
  for (auto [name, value] : {std::pair{"BENCH_RANK", &rank},
                             {"BENCH_SIZE", &size},
                             {"BENCH_HOST", &host},
                             {"BENCH_STORE", &store}}) {
    if (Status s = Environment(name, value); !s.ok()) {
      std::fprintf(stderr, "contest_gloo: %s\n", s.message().c_str());
      return 1;
    }
  }
  try {
    GlooReducer reducer(std::atoi(rank.c_str()), std::atoi(size.c_str()), host,
                        store);
    return RunContest(&reducer);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "contest_gloo: %s\n", e.what());
    return 1;
  }
}

}  // namespace
}  // namespace maypole::bench

int main() { return maypole::bench::Main(); }
