// A process of an elastic job that executes commands: it reads one command per
// line from stdin and writes one line with the result to stdout.
//
//   elastic_rank AGENT JOB MIN MAX
//
//   join: joined PID EPOCH RANK SIZE LOCAL_RANK LOCAL_SIZE NODE NODES
//   sum NAME VALUE: sum RESULT
//   wanted: wanted RANKS (ranks that want to join or to leave)
//   leave: left (announcing that it will join again)
//
// or "failed CODE TEXT".
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

#include "client/api/client.h"

namespace maypole {
namespace {

void Say(const Status& status) {
  std::cout << "failed " << static_cast<int>(status.code()) << " "
            << status.message() << std::endl;
}

class Rank {
 public:
  explicit Rank(RankOptions options) : options_(std::move(options)) {}

  void Join() {
    Status s = Client::Join(options_, &client_);
    if (!s.ok()) return Say(s);
    options_ = client_->options();
    const RankOptions& o = options_;
    std::cout << "joined " << getpid() << " " << o.last_epoch << " " << o.rank
              << " " << o.size << " " << o.local_rank << " " << o.local_size
              << " " << o.cross_rank << " " << o.cross_size << std::endl;
  }

  void Sum(const std::string& name, int64_t value) {
    // Larger than eager, and several chunks over the network.
    std::vector<int64_t> x(100000, value), y(x.size());
    Tensor tensor{
        DType::kInt64, {static_cast<int64_t>(x.size())}, x.data(), y.data()};
    int64_t handle = 0;
    Status s = client_->Allreduce(name, tensor, {.op = Op::kSum}, &handle);
    if (!s.ok()) return Say(s);
    s = client_->Wait(handle, 60000);
    (void)client_->Release(handle);
    for (const int64_t v : y) {
      if (s.ok() && v != y[0]) s = Status(Code::kInternal, "a torn result");
    }
    if (!s.ok()) return Say(s);
    std::cout << "sum " << y[0] << std::endl;
  }

  bool Do(const std::string& line) {
    std::istringstream words(line);
    std::string what, name;
    int64_t value = 0;
    words >> what >> name >> value;
    if (what == "join") {
      Join();
    } else if (client_ == nullptr) {
      return false;
    } else if (what == "sum") {
      Sum(name, value);
    } else if (what == "wanted") {
      std::cout << "wanted " << client_->change_wanted() << std::endl;
    } else if (what == "leave") {
      client_->LeaveToReturn();
      client_.reset();
      std::cout << "left" << std::endl;
    } else {
      return false;
    }
    return true;
  }

 private:
  RankOptions options_;
  std::unique_ptr<Client> client_;
};

}  // namespace
}  // namespace maypole

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  maypole::RankOptions options;
  options.agent = argv[1];
  options.job = argv[2];
  options.token = "of this test";
  options.elastic = true;
  options.min_size = std::atoi(argv[3]);
  options.max_size = std::atoi(argv[4]);
  options.start_timeout_seconds = std::atoi(argv[5]);
  maypole::Rank rank(std::move(options));
  std::string line;
  while (std::getline(std::cin, line)) {
    if (!rank.Do(line)) return 2;
  }
  return 0;
}
