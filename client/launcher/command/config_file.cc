#include "client/launcher/command/config_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <utility>

#include "common/command_line/option_value.h"

namespace maypole::launcher {
namespace {

// kSwitch: true gives `option`, false gives `otherwise`. Other values go to
// `option`, which checks them further.
enum class Kind { kSwitch, kInteger, kNumber, kText, kController };

struct Key {
  const char* name;
  Kind kind;
  const char* option = "";
  const char* otherwise = "";
};

// Keys of a section are "section.key".
constexpr Key kKeys[] = {
    {"controller", Kind::kController},
    {"params.fusion_threshold_mb", Kind::kInteger, "--fusion-threshold-mb"},
    {"params.cycle_time_ms", Kind::kNumber, "--cycle-time-ms"},
    {"params.cache_capacity", Kind::kInteger, "--cache-capacity"},
    {"params.hierarchical_allreduce", Kind::kSwitch, "--hierarchical-allreduce",
     "--no-hierarchical-allreduce"},
    {"params.hierarchical_allgather", Kind::kSwitch, "--hierarchical-allgather",
     "--no-hierarchical-allgather"},
    {"params.torus_allreduce", Kind::kSwitch, "--torus-allreduce",
     "--no-torus-allreduce"},
    {"autotune.enabled", Kind::kSwitch, "--autotune", "--no-autotune"},
    {"autotune.log_file", Kind::kText, "--autotune-log-file"},
    {"autotune.warmup_samples", Kind::kInteger, "--autotune-warmup-samples"},
    {"autotune.steps_per_sample", Kind::kInteger,
     "--autotune-steps-per-sample"},
    {"autotune.bayes_opt_max_samples", Kind::kInteger,
     "--autotune-bayes-opt-max-samples"},
    {"autotune.gaussian_process_noise", Kind::kNumber,
     "--autotune-gaussian-process-noise"},
    {"timeline.filename", Kind::kText, "--timeline-filename"},
    {"timeline.mark_cycles", Kind::kSwitch, "--timeline-mark-cycles",
     "--no-timeline-mark-cycles"},
    {"stall_check.enabled", Kind::kSwitch, "--stall-check", "--no-stall-check"},
    {"stall_check.warning_time_seconds", Kind::kInteger,
     "--stall-check-warning-time-seconds"},
    {"stall_check.shutdown_time_seconds", Kind::kInteger,
     "--stall-check-shutdown-time-seconds"},
    {"library_options.mpi_threads_disable", Kind::kSwitch,
     "--mpi-threads-disable", "--no-mpi-threads-disable"},
    {"library_options.num_nccl_streams", Kind::kInteger, "--num-nccl-streams"},
    {"library_options.thread_affinity", Kind::kText, "--thread-affinity"},
    {"library_options.gloo_timeout_seconds", Kind::kInteger,
     "--gloo-timeout-seconds"},
    {"logging.level", Kind::kText, "--log-level"},
    {"logging.with_timestamp", Kind::kSwitch, "--log-with-timestamp",
     "--log-without-timestamp"},
};

Status Invalid(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}

// Whether it is a number of this type, 0 or larger.
template <typename Number>
bool IsNumber(const YAML::Node& value) {
  Number number = 0;
  return YAML::convert<Number>::decode(value, number) && number >= 0;
}

class Reader {
 public:
  Reader(const std::string& path, std::vector<ConfigSetting>* out)
      : path_(path), out_(out) {}

  Status Read(const YAML::Node& root) {
    if (root.IsNull()) return Status();
    return ReadMap("", root);
  }

 private:
  std::string At(const YAML::Node& node) const {
    return path_ + ":" + std::to_string(node.Mark().line + 1) + ": ";
  }

  Status Expected(const YAML::Node& node, const std::string& key,
                  const std::string& what) const {
    const std::string got = node.IsScalar()
                                ? "\"" + node.Scalar() + "\""
                                : (node.IsMap() ? "a section" : "a list");
    return Invalid(At(node) + key + ": expected " + what + ", got " + got);
  }

  Status ReadMap(const std::string& section, const YAML::Node& map) {
    if (!map.IsMap()) {
      return section.empty()
                 ? Invalid(At(map) + "expected sections with keys and values")
                 : Expected(map, section, "a section with keys and values");
    }
    for (const auto& entry : map) {
      Status s = ReadEntry(section, entry.first, entry.second);
      if (!s.ok()) return s;
    }
    return Status();
  }

  static bool IsSection(const std::string& name) {
    return std::any_of(std::begin(kKeys), std::end(kKeys), [&](const Key& key) {
      return std::string_view(key.name).starts_with(name + ".");
    });
  }

  Status ReadEntry(const std::string& section, const YAML::Node& name,
                   const YAML::Node& value) {
    if (!name.IsScalar()) return Invalid(At(name) + "a key must be a word");
    const std::string key =
        section.empty() ? name.Scalar() : section + "." + name.Scalar();
    if (section.empty() && IsSection(key)) {
      return value.IsNull() ? Status() : ReadMap(key, value);
    }
    const Key* const known =
        std::find_if(std::begin(kKeys), std::end(kKeys),
                     [&](const Key& k) { return k.name == key; });
    if (known == std::end(kKeys)) return Unknown(name, section, key);
    return value.IsNull() ? Status() : ReadValue(*known, value);
  }

  // Lists the names that are valid in the section, or outside all sections.
  Status Unknown(const YAML::Node& name, const std::string& section,
                 const std::string& key) const {
    const std::string prefix = section.empty() ? "" : section + ".";
    std::vector<std::string> names;
    for (const Key& k : kKeys) {
      std::string_view rest = k.name;
      if (!rest.starts_with(prefix)) continue;
      rest.remove_prefix(prefix.size());
      rest = rest.substr(0, rest.find('.'));
      if (names.empty() || names.back() != rest) names.emplace_back(rest);
    }
    return Invalid(At(name) + "there is no key '" + key + "'; expected " +
                   JoinedByOr(names));
  }

  Status ReadValue(const Key& key, const YAML::Node& value) {
    if (!value.IsScalar()) return Expected(value, key.name, "one value");
    const auto set = [&](const char* option, const std::string& text) {
      out_->push_back(
          {.option = option, .text = text, .where = At(value) + key.name});
      return Status();
    };
    switch (key.kind) {
      case Kind::kSwitch: {
        bool on = false;
        if (!YAML::convert<bool>::decode(value, on)) {
          return Expected(value, key.name, "true or false");
        }
        return set(on ? key.option : key.otherwise, "");
      }
      case Kind::kInteger:
        return IsNumber<int64_t>(value)
                   ? set(key.option, value.Scalar())
                   : Expected(value, key.name, "an integer, 0 or larger");
      case Kind::kNumber:
        return IsNumber<double>(value)
                   ? set(key.option, value.Scalar())
                   : Expected(value, key.name, "a number, 0 or larger");
      case Kind::kText:
        return set(key.option, value.Scalar());
      case Kind::kController:
        if (value.Scalar() == "gloo") return set("--gloo", "");
        if (value.Scalar() == "mpi") return set("--mpi", "");
        return Expected(value, key.name, "gloo or mpi");
    }
    return Status();
  }

  const std::string& path_;
  std::vector<ConfigSetting>* out_;
};

}  // namespace

Status ReadConfig(const std::string& path, const std::string& text,
                  std::vector<ConfigSetting>* out) {
  try {
    return Reader(path, out).Read(YAML::Load(text));
  } catch (const YAML::Exception& error) {
    return Invalid(path + ":" + std::to_string(error.mark.line + 1) +
                   ": this is not YAML: " + error.msg);
  }
}

}  // namespace maypole::launcher
