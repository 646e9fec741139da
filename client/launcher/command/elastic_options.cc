#include "client/launcher/command/elastic_options.h"

#include <algorithm>
#include <utility>

namespace maypole::launcher {
namespace {

Status Invalid(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}

Status ReadCooldown(const std::vector<std::string>& words,
                    std::vector<int>* out) {
  if (words.empty()) return Status();
  constexpr char kName[] = "--blacklist-cooldown-range";
  if (words.size() != 2) {
    return Invalid(std::string(kName) + " takes two numbers: MIN MAX");
  }
  out->resize(2);
  for (size_t i = 0; i < 2; ++i) {
    Status s =
        IntegerValue(&(*out)[i], 1, kMaxStartTimeout).Read(kName, words[i]);
    if (!s.ok()) return s;
  }
  if ((*out)[0] <= (*out)[1]) return Status();
  return Invalid(std::string(kName) + ": MIN is larger than MAX");
}

// The hosts of an elastic job that has no discovery script.
Status ChooseHosts(const std::vector<Host>& hosts, const LauncherOptions& o,
                   ElasticOptions* e) {
  if (!e->discovery_script.empty()) {
    if (hosts.empty()) return Status();
    return Invalid(
        "give either --host-discovery-script or hosts (-H, --hostfile), not "
        "both");
  }
  e->hosts = hosts;
  if (e->hosts.empty()) {
    const int slots = std::max(o.ranks, std::max(e->max_size, e->min_size));
    e->hosts = {{.name = "localhost", .slots = slots, .here = true}};
  }
  return CheckSlots(e->hosts);
}

}  // namespace

void DefineElastic(ElasticGiven* given, CommandLine* line) {
  ElasticOptions& e = given->options;
  line->Add({"--min-np", "--min-num-proc"},
            IntegerValue(&e.min_size, 1, kMaxRanks).WithDefault("-np"),
            "an elastic job: ranks may fail and come, and it goes on with at "
            "least so many");
  line->Add({"--max-np", "--max-num-proc"},
            IntegerValue(&e.max_size, 1, kMaxRanks).WithDefault("all slots"),
            "an elastic job with at most so many ranks");
  line->Add({"--host-discovery-script"}, FileValue(&e.discovery_script),
            "an elastic job on the hosts that this program prints, one "
            "\"HOST\" or \"HOST:SLOTS\" per line; it runs once a second, and "
            "may have arguments: \"./hosts.sh --zone a\"");
  line->Add({"--slots-per-host"},
            IntegerValue(&e.slots_per_host, 1, kMaxLocalRanks),
            "slots of hosts that the script prints without a number");
  line->Add({"--elastic-timeout"},
            IntegerValue(&e.timeout_s, 1, kMaxStartTimeout).WithName("SECONDS"),
            "how long an elastic job waits when it has less than --min-np");
  line->Add({"--reset-limit"},
            IntegerValue(&e.reset_limit, 0).WithDefault("no limit"),
            "after how many changes of its ranks or hosts an elastic job ends");
  OptionValue range = ListValue(&given->cooldown, "MIN MAX");
  range.initial = "1 60";
  range.words = 2;
  line->Add({"--blacklist-cooldown-range"}, std::move(range),
            "seconds in which nothing is started on a host where a rank has "
            "failed: MIN after the first failure, twice as long after each "
            "further one, up to MAX");
}

bool IsElastic(const ElasticGiven& given) {
  const ElasticOptions& e = given.options;
  return e.min_size > 0 || e.max_size > 0 || !e.discovery_script.empty();
}

Status ChooseElastic(const ElasticGiven& given, const std::vector<Host>& hosts,
                     LauncherOptions* o) {
  ElasticOptions e = given.options;
  Status s = ReadCooldown(given.cooldown, &e.cooldown_s);
  if (s.ok()) s = ChooseHosts(hosts, *o, &e);
  if (!s.ok()) return s;
  const int slots = e.discovery_script.empty() ? SlotsOf(e.hosts) : kMaxRanks;
  if (e.max_size == 0) e.max_size = slots;
  if (o->ranks == 0) o->ranks = e.min_size > 0 ? e.min_size : 1;
  if (e.min_size == 0) e.min_size = o->ranks;
  if (e.min_size <= o->ranks && o->ranks <= e.max_size && o->ranks <= slots) {
    o->elastic = std::move(e);
    return Status();
  }
  return Invalid("--min-np " + std::to_string(e.min_size) + ", -np " +
                 std::to_string(o->ranks) + ", --max-np " +
                 std::to_string(e.max_size) + " and the hosts' " +
                 std::to_string(slots) +
                 " slots must be in ascending order (the last two may be in "
                 "any)");
}

}  // namespace maypole::launcher
