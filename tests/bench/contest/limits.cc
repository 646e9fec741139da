// limits: measures the machine's limits at this moment.
//
// Reads commands from standard input until it is closed, one per line, and
// answers each with a line:
//
//   pingpong   nanoseconds that a flag takes from one core to another
//   memcpy     GB/s of each core, all of them copying 256 MiB at once
//
// Threads are pinned. On far cores the flag takes longer, which separates near
// from far rounds.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBatches = 31;
constexpr int kTripsPerBatch = 100;
constexpr size_t kCopyBytes = size_t{256} << 20;

std::vector<int> UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  std::vector<int> cores;
  for (int c = 0; c < CPU_SETSIZE; ++c) {
    if (CPU_ISSET(c, &set)) cores.push_back(c);
  }
  return cores;
}

void PinTo(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

double Nanoseconds(Clock::duration d) {
  return std::chrono::duration<double, std::nano>(d).count();
}

// The median over batches, of half a round trip.
double PingPong(const std::vector<int>& cores) {
  constexpr int kTrips = kBatches * kTripsPerBatch;
  alignas(64) std::atomic<int> ping{0};
  alignas(64) std::atomic<int> pong{0};
  std::thread echo([&] {
    PinTo(cores.back());
    for (int i = 1; i <= kTrips; ++i) {
      while (ping.load(std::memory_order_acquire) < i) {
      }
      pong.store(i, std::memory_order_release);
    }
  });
  std::vector<double> batches;
  std::thread([&] {
    PinTo(cores.front());
    int trip = 0;
    for (int b = 0; b < kBatches; ++b) {
      const auto start = Clock::now();
      for (int i = 0; i < kTripsPerBatch; ++i) {
        ping.store(++trip, std::memory_order_release);
        while (pong.load(std::memory_order_acquire) < trip) {
        }
      }
      batches.push_back(Nanoseconds(Clock::now() - start) / kTripsPerBatch / 2);
    }
  }).join();
  echo.join();
  std::nth_element(batches.begin(), batches.begin() + kBatches / 2,
                   batches.end());
  return batches[kBatches / 2];
}

// A thread per core, each with its own memory.
class Copier {
 public:
  explicit Copier(const std::vector<int>& cores)
      : cores_(cores), memory_(cores.size()) {}

  std::vector<double> Measure() {
    std::vector<double> rates(cores_.size());
    std::barrier start(static_cast<std::ptrdiff_t>(cores_.size()));
    std::vector<std::thread> threads;
    for (size_t i = 0; i < cores_.size(); ++i) {
      threads.emplace_back([&, i] {
        PinTo(cores_[i]);
        Prepare(&memory_[i]);
        start.arrive_and_wait();
        const auto begin = Clock::now();
        std::memcpy(memory_[i].to.get(), memory_[i].from.get(), kCopyBytes);
        rates[i] = kCopyBytes / Nanoseconds(Clock::now() - begin);
      });
    }
    for (std::thread& t : threads) t.join();
    return rates;
  }

 private:
  struct Pair {
    std::unique_ptr<char[]> from, to;
  };

  // Once before measuring, because the first touch is the kernel's time.
  static void Prepare(Pair* pair) {
    if (pair->from != nullptr) return;
    pair->from.reset(new char[kCopyBytes]);
    pair->to.reset(new char[kCopyBytes]);
    std::memset(pair->from.get(), 1, kCopyBytes);
    std::memset(pair->to.get(), 2, kCopyBytes);
  }

  const std::vector<int> cores_;
  std::vector<Pair> memory_;
};

}  // namespace

int main() {
  const std::vector<int> cores = UsableCores();
  Copier copier(cores);
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "pingpong") {
      std::printf("%.1f\n", cores.size() < 2 ? 0.0 : PingPong(cores));
    } else if (line == "memcpy") {
      for (double rate : copier.Measure()) std::printf("%.2f ", rate);
      std::printf("\n");
    } else {
      std::fprintf(stderr, "limits: unknown command %s\n", line.c_str());
      return 2;
    }
    std::fflush(stdout);
  }
  return 0;
}
