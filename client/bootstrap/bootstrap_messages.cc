#include "client/bootstrap/bootstrap_messages.h"

#include "common/parse.h"

namespace maypole {
namespace {

// The info's first line: this, and the number of its format.
constexpr std::string_view kInfoMagic = "maypole-bootstrap-";
constexpr int kInfoFormat = 1;

// Arguments must not contain a line break or a 0, whatever a variable holds.
std::string OneLine(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\0') c = ' ';
  }
  return text;
}

std::string JoinWords(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

std::string Say(std::string_view verb,
                const std::vector<std::string>& arguments) {
  std::string out(verb);
  for (const std::string& a : arguments) out += "\n" + OneLine(a);
  if (out.size() > kMaxBootstrapBytes) out.resize(kMaxBootstrapBytes);
  return out;
}

std::vector<std::string> Lines(std::string_view message) {
  return Split(message, '\n');
}

std::string Encode(const RankMessage& p) {
  std::vector<std::string> arguments = {
      std::to_string(p.versions.oldest),
      p.job,
      p.node,
      std::to_string(p.rank),
      std::to_string(p.size),
      std::to_string(p.local_rank),
      std::to_string(p.local_size),
      std::to_string(p.start_timeout_seconds),
      std::to_string(static_cast<int>(p.exchange)),
      p.why_none,
      p.head,
      p.at_head ? "1" : "0",
      std::to_string(p.versions.newest)};
  return Say(kSayPlace, arguments);
}

Status Decode(std::string_view message, RankMessage* out) {
  const std::vector<std::string> l = Lines(message);
  int oldest = 0, newest = 0, exchange = 0, at_head = 0;
  // The versions' positions in the message never change, so that a message of
  // any other version can be refused with an error that names the version.
  if (l.size() < 3 || l[0] != kSayPlace ||
      !ParseNumber(l[1], 0, 1 << 30, &oldest) ||
      !ParseNumber(l.back(), 0, 1 << 30, &newest)) {
    return Status(Code::kInvalidArgument, "this is not a rank's first message");
  }
  RankMessage p;
  p.versions = {static_cast<uint32_t>(oldest), static_cast<uint32_t>(newest)};
  uint32_t version = 0;
  if (Status s =
          ChooseVersion({{"libmaypole", p.versions},
                         {"the maypolerun that it found", kProtocolVersions}},
                        &version);
      !s.ok()) {
    return Status(s.code(), s.message() +
                                ", or set MAYPOLE_BIN to the directory of the "
                                "right programs");
  }
  if (l.size() != 14 || !ParseNumber(l[4], 0, kMaxRanks - 1, &p.rank) ||
      !ParseNumber(l[5], 1, kMaxRanks, &p.size) ||
      !ParseNumber(l[6], 0, kMaxLocalRanks - 1, &p.local_rank) ||
      !ParseNumber(l[7], 1, kMaxLocalRanks, &p.local_size) ||
      !ParseNumber(l[8], 1, 86400, &p.start_timeout_seconds) ||
      !ParseNumber(l[9], 0, 2, &exchange) ||
      !ParseNumber(l[12], 0, 1, &at_head)) {
    return Status(Code::kInvalidArgument, "a rank's first message is damaged");
  }
  p.job = l[2];
  p.node = l[3];
  p.exchange = static_cast<ExchangeKind>(exchange);
  p.why_none = l[10];
  p.head = l[11];
  p.at_head = at_head != 0;
  *out = std::move(p);
  return Status();
}

std::string Encode(const BootstrapInfo& info) {
  return Say(std::string(kInfoMagic) + std::to_string(kInfoFormat),
             {JoinWords(info.coordinators), info.secret, info.token});
}

Status Decode(std::string_view text, BootstrapInfo* out) {
  const std::vector<std::string> l = Lines(text);
  int format = 0;
  if (!l[0].starts_with(kInfoMagic) ||
      !ParseNumber(l[0].substr(kInfoMagic.size()), 0, 1 << 30, &format)) {
    return Status(Code::kInvalidArgument,
                  "what rank 0 published (" + std::to_string(text.size()) +
                      " bytes) is not the address of a coordinator; does "
                      "another program write to the same place?");
  }
  if (format != kInfoFormat) {
    return Status(Code::kFailedPrecondition,
                  "rank 0 published the coordinator's address in format " +
                      std::to_string(format) + ", but this node reads format " +
                      std::to_string(kInfoFormat) +
                      ": install the same version of Maypole on all nodes");
  }
  if (l.size() != 4) {
    return Status(Code::kInvalidArgument,
                  "the coordinator's address that rank 0 published is damaged: "
                  "it has " +
                      std::to_string(l.size()) + " lines, not 4");
  }
  *out = BootstrapInfo{};
  if (!l[1].empty()) out->coordinators = Split(l[1], ' ');
  out->secret = l[2];
  out->token = l[3];
  return Status();
}

}  // namespace maypole
