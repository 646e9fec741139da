// Random programs over streams of several fake processes: in every schedule the
// result is that of sequential execution, unless the waits are left out.
#include <algorithm>
#include <array>
#include <random>
#include <set>

#include "common/reduce/reduce.h"
#include "worker/backend/gpu/testing/fake_testing.h"

namespace maypole::gpu {
namespace {

constexpr int kProcesses = 3;
constexpr int kStreams = 2;  // of each
constexpr int kAllStreams = kProcesses * kStreams;
constexpr int kSlots = 9;
constexpr uint64_t kElements = 96;
constexpr uint64_t kSlotBytes = kElements * sizeof(float);
constexpr uint64_t kPageBytes = 4096;
constexpr int kOperations = 60;

enum class What { kFill, kCopy, kKernelCopy, kReduce };

struct Operation {
  What what;
  int stream;  // of all
  std::vector<int> from, to;
  float value;  // of kFill; of kReduce: its scale
  Op op;
};

// Operations on slots, in an order that gives a result.
using Program = std::vector<Operation>;

Program RandomProgram(std::mt19937_64& random) {
  const auto below = [&](int n) {
    return static_cast<int>(random() % static_cast<uint64_t>(n));
  };
  Program program;
  for (int i = 0; i < kOperations; ++i) {
    std::vector<int> slots(kSlots);
    for (int s = 0; s < kSlots; ++s) slots[static_cast<size_t>(s)] = s;
    std::shuffle(slots.begin(), slots.end(), random);
    Operation o = {.what = static_cast<What>(below(4)),
                   .stream = below(kAllStreams),
                   .from = {},
                   .to = {slots[0]},
                   .value = static_cast<float>(1 + below(9)),
                   .op = Op::kSum};
    if (o.what == What::kCopy || o.what == What::kKernelCopy) {
      o.from = {slots[1]};
    } else if (o.what == What::kReduce) {
      const int inputs = 1 + below(4), outputs = 1 + below(3);
      // Some outputs are inputs too.
      const int first = below(inputs + 1);
      o.from.assign(slots.begin(), slots.begin() + inputs);
      o.to.assign(slots.begin() + first, slots.begin() + first + outputs);
      o.value = 0.25f;
      o.op = std::array{Op::kSum, Op::kMin, Op::kMax}[random() % 3];
    }
    program.push_back(std::move(o));
  }
  return program;
}

using Slots = std::vector<std::vector<float>>;

Slots FirstContent() {
  Slots slots(kSlots, std::vector<float>(kElements));
  for (size_t s = 0; s < kSlots; ++s) {
    for (size_t e = 0; e < kElements; ++e) {
      slots[s][e] = static_cast<float>(s * 100 + e);
    }
  }
  return slots;
}

// One after the other.
Slots Model(const Program& program) {
  Slots slots = FirstContent();
  const auto at = [&](int s) -> std::vector<float>& {
    return slots[static_cast<size_t>(s)];
  };
  for (const Operation& o : program) {
    if (o.what == What::kFill) {
      std::fill(at(o.to[0]).begin(), at(o.to[0]).end(), o.value);
    } else if (o.what != What::kReduce) {
      at(o.to[0]) = at(o.from[0]);
    } else {
      std::vector<const std::byte*> from;
      std::vector<std::byte*> to;
      for (int s : o.from) {
        from.push_back(reinterpret_cast<const std::byte*>(at(s).data()));
      }
      for (int s : o.to) {
        to.push_back(reinterpret_cast<std::byte*>(at(s).data()));
      }
      ReduceTo(DType::kFloat32, o.op, from, to, kElements, {.scale = o.value});
    }
  }
  return slots;
}

bool Conflict(const Operation& a, const Operation& b) {
  const auto meets = [](const std::vector<int>& x, const std::vector<int>& y) {
    return std::any_of(x.begin(), x.end(), [&](int s) {
      return std::find(y.begin(), y.end(), s) != y.end();
    });
  };
  return meets(a.to, b.to) || meets(a.to, b.from) || meets(a.from, b.to);
}

// Runs a program: slot s belongs to process s % kProcesses, and all map it; the
// flags of all streams are in a memory of process 0.
class Runner {
 public:
  explicit Runner(const std::shared_ptr<FakeMachine>& machine) {
    for (int p = 0; p < kProcesses; ++p) {
      processes_.push_back(std::make_unique<TestProcess>(machine));
    }
    for (int s = 0; s < kSlots; ++s) {
      slots_.push_back(EverywhereFrom(s % kProcesses));
    }
    flags_ = EverywhereFrom(0);
    memset(At<void>(flags_[0]), 0, kPageBytes);
    const Slots content = FirstContent();
    for (size_t s = 0; s < kSlots; ++s) {
      memcpy(At<void>(slots_[s][0]), content[s].data(), kSlotBytes);
    }
    for (int i = 0; i < kAllStreams; ++i) {
      Gpu& gpu = *process(i).gpu;
      streams_.push_back(gpu.CreateStream().value());
      events_.push_back(gpu.CreateEvent(EventUse::kInterprocess).value());
      const EventHandle handle = gpu.ExportEvent(events_.back()).value();
      imported_.emplace_back();
      for (int p = 0; p < kProcesses; ++p) {
        imported_.back().push_back(p == i % kProcesses
                                       ? events_.back()
                                       : processes_[static_cast<size_t>(p)]
                                             ->gpu->ImportEvent(handle)
                                             .value());
      }
    }
  }

  // How one stream waits for another is chosen by `random`: a flag, or an
  // event.
  void Enqueue(const Program& program, std::mt19937_64& random, bool waits) {
    for (size_t i = 0; i < program.size(); ++i) {
      if (waits) EnqueueWaits(program, i, random);
      EnqueueWork(program[i]);
      const int s = program[i].stream;
      Gpu& gpu = *process(s).gpu;
      EXPECT_OK(gpu.WriteValue(stream(s), Flag(s, s % kProcesses), i + 1));
      EXPECT_OK(gpu.Record(events_[static_cast<size_t>(s)], stream(s)));
    }
  }

  void Synchronize() {
    for (int s = 0; s < kAllStreams; ++s) {
      EXPECT_OK(process(s).gpu->Synchronize(stream(s)));
    }
  }

  Slots Result() const {
    Slots out(kSlots, std::vector<float>(kElements));
    for (size_t s = 0; s < kSlots; ++s) {
      memcpy(out[s].data(), At<void>(slots_[s][0]), kSlotBytes);
    }
    return out;
  }

 private:
  // New memory of the process, at its address in each.
  std::vector<Address> EverywhereFrom(int owner) {
    TestProcess& from = *processes_[static_cast<size_t>(owner)];
    const Address address = from.Allocate(kPageBytes);
    std::vector<Address> out;
    for (int p = 0; p < kProcesses; ++p) {
      out.push_back(p == owner
                        ? address
                        : processes_[static_cast<size_t>(p)]->ImportedFrom(
                              from, address, 2 * kMiB));
    }
    return out;
  }
  TestProcess& process(int stream) {
    return *processes_[static_cast<size_t>(stream % kProcesses)];
  }
  Stream stream(int s) const { return streams_[static_cast<size_t>(s)]; }
  Address Flag(int stream, int process) const {
    return flags_[static_cast<size_t>(process)] +
           8 * static_cast<uint64_t>(stream);
  }

  // For the last operation of each other stream that conflicts.
  void EnqueueWaits(const Program& program, size_t index,
                    std::mt19937_64& random) {
    const int s = program[index].stream, p = s % kProcesses;
    Gpu& gpu = *process(s).gpu;
    std::set<int> waited = {s};
    for (size_t before = index; before-- > 0;) {
      const int other = program[before].stream;
      if (waited.contains(other) ||
          !Conflict(program[before], program[index])) {
        continue;
      }
      waited.insert(other);
      if (random() % 2 == 0) {
        EXPECT_OK(gpu.WaitValue(stream(s), Flag(other, p), before + 1));
      } else {
        EXPECT_OK(gpu.WaitEvent(
            stream(s),
            imported_[static_cast<size_t>(other)][static_cast<size_t>(p)]));
      }
    }
  }

  void EnqueueWork(const Operation& o) {
    const int s = o.stream;
    const auto addresses = [&](const std::vector<int>& slots) {
      std::vector<Address> out;
      for (int slot : slots) {
        out.push_back(slots_[static_cast<size_t>(slot)]
                            [static_cast<size_t>(s % kProcesses)]);
      }
      return out;
    };
    const std::vector<Address> from = addresses(o.from), to = addresses(o.to);
    Gpu& gpu = *process(s).gpu;
    uint32_t word;
    memcpy(&word, &o.value, sizeof(word));
    switch (o.what) {
      case What::kFill:
        EXPECT_OK(gpu.Fill(stream(s), to[0], word, kElements));
        break;
      case What::kCopy:
        EXPECT_OK(gpu.Copy(stream(s), to[0], from[0], kSlotBytes));
        break;
      case What::kKernelCopy:
        EXPECT_OK(gpu.KernelCopy(stream(s), to[0], from[0], kSlotBytes, 0));
        break;
      case What::kReduce:
        EXPECT_OK(gpu.Reduce(stream(s), {.inputs = from,
                                         .outputs = to,
                                         .elements = kElements,
                                         .op = o.op,
                                         .scale = o.value}));
        break;
    }
  }

  std::vector<std::unique_ptr<TestProcess>> processes_;
  std::vector<std::vector<Address>> slots_;  // by slot and process
  std::vector<Address> flags_;               // by process
  std::vector<Stream> streams_;
  std::vector<Event> events_;                 // one of each stream
  std::vector<std::vector<Event>> imported_;  // by stream and process
};

TEST(FakeProgramsTest, ResultsAreThoseOfOneAfterTheOther) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Program program = RandomProgram(random);
    const Slots expected = Model(program);
    for (uint64_t schedule = 1; schedule <= 3; ++schedule) {
      Runner runner(Stepped(seed * 1000 + schedule));
      runner.Enqueue(program, random, /*waits=*/true);
      runner.Synchronize();
      ASSERT_EQ(runner.Result(), expected) << "schedule " << schedule;
    }
  }
}

TEST(FakeProgramsTest, ThreadsGiveTheSame) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Program program = RandomProgram(random);
    Runner runner(Threaded());
    runner.Enqueue(program, random, /*waits=*/true);
    runner.Synchronize();
    ASSERT_EQ(runner.Result(), Model(program));
  }
}

TEST(FakeProgramsTest, OneSeedIsOneSchedule) {
  std::mt19937_64 random(5);
  const Program program = RandomProgram(random);
  const auto result = [&](uint64_t schedule) {
    Runner runner(Stepped(schedule));
    runner.Enqueue(program, random, /*waits=*/false);
    runner.Synchronize();
    return runner.Result();
  };
  EXPECT_EQ(result(1), result(1));
  std::set<Slots> results;
  for (uint64_t schedule = 1; schedule <= 20; ++schedule) {
    results.insert(result(schedule));
  }
  EXPECT_GT(results.size(), 10u);
}

TEST(FakeProgramsTest, WrongSynchronisationShowsAsWrongBytes) {
  int wrong = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    const Program program = RandomProgram(random);
    Runner runner(Stepped(seed));
    runner.Enqueue(program, random, /*waits=*/false);
    runner.Synchronize();
    wrong += runner.Result() != Model(program);
  }
  EXPECT_EQ(wrong, 20);
}

}  // namespace
}  // namespace maypole::gpu
