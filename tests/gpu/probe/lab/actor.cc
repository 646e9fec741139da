// The process of an actor: PlayRole, Stage.
#include "tests/gpu/probe/lab/actor.h"

#include <unistd.h>

#include <cstdio>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace maypole::probe {
namespace {

constexpr char kActorFlag[] = "--actor";

enum Position {
  kFlag = 1,
  kRole,
  kChannel,
  kPlugin,
  kNccl,
  kFake,
  kQuick,
  kDevice,
  kArguments
};

bool Truth(std::string_view text) { return text == "1"; }

}  // namespace

std::vector<std::string> ActorCommandLine(
    const std::string& role, int channel, const Options& options,
    const std::vector<std::string>& arguments) {
  std::vector<std::string> out = {"probe",
                                  kActorFlag,
                                  role,
                                  absl::StrCat(channel),
                                  options.plugin,
                                  options.nccl,
                                  options.fake ? "1" : "0",
                                  options.quick ? "1" : "0",
                                  options.device};
  out.insert(out.end(), arguments.begin(), arguments.end());
  return out;
}

std::string ErrorLine(const absl::Status& status) {
  return absl::StrCat(kErrorWord, " ", static_cast<int>(status.code()), " ",
                      status.message());
}

absl::Status ParseErrorLine(const std::string& line) {
  const std::vector<std::string> parts =
      absl::StrSplit(line, absl::MaxSplits(' ', 2));
  int code = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[1], &code) || code == 0) {
    return absl::InternalError(line);
  }
  return absl::Status(static_cast<absl::StatusCode>(code), parts[2]);
}

std::optional<int> PlayRole(int argc, char** argv) {
  if (argc < kArguments || std::string_view(argv[kFlag]) != kActorFlag)
    return std::nullopt;
  Options options;
  options.plugin = argv[kPlugin];
  options.nccl = argv[kNccl];
  options.fake = Truth(argv[kFake]);
  options.quick = Truth(argv[kQuick]);
  options.device = argv[kDevice];
  const auto role = Roles().find(argv[kRole]);
  int fd = -1;
  if (role == Roles().end() || !absl::SimpleAtoi(argv[kChannel], &fd)) {
    std::fprintf(stderr, "gpu probe: no role '%s'\n", argv[kRole]);
    return 2;
  }
  Stage stage(options, {argv + kArguments, argv + argc}, Channel(Fd(fd)));
  const absl::Status status = role->second(stage);
  if (status.ok()) return 0;
  stage.channel().Send(ErrorLine(status)).IgnoreError();
  return 1;
}

int64_t Stage::Number(size_t index) const {
  int64_t value = 0;
  if (index >= arguments_.size() ||
      !absl::SimpleAtoi(arguments_[index], &value)) {
    std::fprintf(stderr, "gpu probe: argument %zu of a role is no number\n",
                 index);
    _exit(2);
  }
  return value;
}

void Stage::Fail(const absl::Status& status) {
  channel_.Send(ErrorLine(status)).IgnoreError();
  _exit(1);
}

void Stage::Open() {
  if (gpu_ != nullptr) return;
  auto driver = OpenDriver(options_);
  if (!driver.ok()) Fail(driver.status());
  driver_ = *std::move(driver);
  std::string uuid = options_.device;
  if (uuid.empty()) {
    const auto devices = driver_->Devices();
    if (!devices.ok()) Fail(devices.status());
    if (devices->empty()) {
      Fail(absl::UnavailableError("the driver knows no device"));
    }
    uuid = devices->front().uuid;
  }
  auto gpu = driver_->Open(uuid);
  if (!gpu.ok()) Fail(gpu.status());
  gpu_ = *std::move(gpu);
}

gpu::Gpu& Stage::gpu() {
  Open();
  return *gpu_;
}

const gpu::Versions& Stage::versions() {
  Open();
  return driver_->versions();
}

}  // namespace maypole::probe
