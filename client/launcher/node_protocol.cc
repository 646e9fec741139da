#include "client/launcher/node_protocol.h"

#include <charconv>
#include <type_traits>
#include <utility>

#include "client/launcher/options.h"

namespace maypole::launcher {
namespace {

constexpr size_t kLengthBytes = 4;
constexpr std::string_view kPreambleStart = "maypole-node protocol=";
constexpr std::string_view kPreambleVersion = " version=";

// The fields of each message, for the writer and the reader alike.
template <typename A, typename M>
void Fields(A& a, M& m) {
  using T = std::remove_const_t<M>;
  if constexpr (std::is_same_v<T, NodeJob>) {
    a(m.protocol), a(m.host), a(m.node), a(m.nodes), a(m.ranks);
    a(m.first_rank), a(m.local_size), a(m.job), a(m.token);
    a(m.start_timeout_s), a(m.directory), a(m.environment), a(m.command);
    a(m.verbose), a(m.start_agent), a(m.running_agent), a(m.agent_socket);
    a(m.coordinators), a(m.secret), a(m.network), a(m.interfaces);
  } else if constexpr (std::is_same_v<T, SignalRanks>) {
    a(m.signal), a(m.hurry);
  } else if constexpr (std::is_same_v<T, NodeHello>) {
    a(m.head_address);
  } else if constexpr (std::is_same_v<T, NodeReady>) {
    a(m.agent);
  } else if constexpr (std::is_same_v<T, NodeRefused>) {
    a(m.why);
  } else if constexpr (std::is_same_v<T, RankStarted>) {
    a(m.rank), a(m.pid);
  } else if constexpr (std::is_same_v<T, RankOutput>) {
    a(m.rank), a(m.stream), a(m.bytes);
  } else if constexpr (std::is_same_v<T, RankEnded>) {
    a(m.rank), a(m.signaled), a(m.value);
  } else if constexpr (std::is_same_v<T, DaemonLost>) {
    a(m.what);
  } else {
    static_assert(std::is_same_v<T, StartRanks>);
  }
}

class Writer {
 public:
  void operator()(int32_t value) {
    auto bits = static_cast<uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) {
      out_ += static_cast<char>(bits >> shift & 0xff);
    }
  }
  void operator()(bool value) { out_ += value ? '\1' : '\0'; }
  void operator()(const std::string& text) {
    (*this)(static_cast<int32_t>(text.size()));
    out_ += text;
  }
  void operator()(const std::vector<std::string>& list) {
    (*this)(static_cast<int32_t>(list.size()));
    for (const std::string& text : list) (*this)(text);
  }
  void Byte(size_t value) { out_ += static_cast<char>(value); }
  std::string& out() { return out_; }

 private:
  std::string out_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  void operator()(int32_t& value) {
    std::string_view bytes = Take(4);
    uint32_t bits = 0;
    for (size_t i = 0; i < bytes.size(); ++i) {
      bits |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[i]))
              << (8 * i);
    }
    value = static_cast<int32_t>(bits);
  }
  void operator()(bool& value) {
    std::string_view byte = Take(1);
    if (!byte.empty() && byte[0] != 0 && byte[0] != 1) good_ = false;
    value = !byte.empty() && byte[0] == 1;
  }
  void operator()(std::string& text) { text = Take(Length()); }
  void operator()(std::vector<std::string>& list) {
    list.clear();
    size_t count = Length();
    // Each text takes room for its length at least.
    if (count > rest_.size() / 4) good_ = false;
    for (size_t i = 0; good_ && i < count; ++i) {
      (*this)(list.emplace_back());
    }
  }
  bool all_read() const { return good_ && rest_.empty(); }

 private:
  size_t Length() {
    int32_t length = 0;
    (*this)(length);
    if (length < 0) good_ = false;
    return good_ ? static_cast<size_t>(length) : 0;
  }
  std::string_view Take(size_t size) {
    if (!good_ || size > rest_.size()) {
      good_ = false;
      return {};
    }
    std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  std::string_view rest_;
  bool good_ = true;
};

// The message of that number, empty; none if there is no such.
template <size_t I = 0>
std::optional<NodeMessage> MessageOf(size_t number) {
  if constexpr (I < std::variant_size_v<NodeMessage>) {
    if (number == I) return NodeMessage(std::in_place_index<I>);
    return MessageOf<I + 1>(number);
  }
  return std::nullopt;
}

Status Garbled(std::string what) {
  return Status(Code::kDataLoss, "what came through ssh makes no sense (" +
                                     std::move(what) + ")");
}

size_t LengthAt(std::string_view bytes) {
  int32_t length = 0;
  Reader reader(bytes.substr(0, kLengthBytes));
  reader(length);
  return static_cast<uint32_t>(length);
}

}  // namespace

std::string EncodeFrame(const NodeMessage& message) {
  Writer body;
  body.Byte(message.index());
  std::visit([&](const auto& m) { Fields(body, m); }, message);
  Writer frame;
  frame(static_cast<int32_t>(body.out().size()));
  return frame.out() + body.out();
}

Status FrameReader::Next(std::optional<NodeMessage>* out) {
  out->reset();
  if (!broken_.ok() || buffer_.size() < kLengthBytes) return broken_;
  size_t length = LengthAt(buffer_);
  if (length == 0 || length > max_frame_) {
    return broken_ = Garbled("a frame of " + std::to_string(length) +
                             " bytes; 1 to " + std::to_string(max_frame_) +
                             " are expected");
  }
  if (buffer_.size() - kLengthBytes < length) return Status();
  std::string_view body =
      std::string_view(buffer_).substr(kLengthBytes, length);
  size_t number = static_cast<unsigned char>(body[0]);
  std::optional<NodeMessage> message = MessageOf(number);
  if (!message) {
    return broken_ = Garbled("a message of number " + std::to_string(number));
  }
  Reader reader(body.substr(1));
  std::visit([&](auto& m) { Fields(reader, m); }, *message);
  if (!reader.all_read()) {
    return broken_ = Garbled("the fields of message " + std::to_string(number) +
                             " are wrong");
  }
  *out = std::move(message);
  buffer_.erase(0, kLengthBytes + length);
  return Status();
}

std::string Preamble() {
  // On a line of its own, whatever a shell has printed.
  return "\n" + std::string(kPreambleStart) + std::to_string(kNodeProtocol) +
         std::string(kPreambleVersion) + kVersion + "\n";
}

bool PreambleReader::Feed(std::string_view bytes, std::string* rest) {
  chatter_ += bytes;
  size_t start = chatter_.find("\n" + std::string(kPreambleStart));
  if (start == chatter_.npos) return false;
  size_t end = chatter_.find('\n', start + 1);
  if (end == chatter_.npos) return false;
  std::string_view line =
      std::string_view(chatter_).substr(start + 1, end - start - 1);
  line.remove_prefix(kPreambleStart.size());
  std::from_chars(line.data(), line.data() + line.size(), protocol_);
  size_t version = line.find(kPreambleVersion);
  if (version != line.npos) {
    version_ = line.substr(version + kPreambleVersion.size());
  }
  *rest = chatter_.substr(end + 1);
  chatter_.resize(start);
  return true;
}

}  // namespace maypole::launcher
