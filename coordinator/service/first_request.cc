#include "coordinator/service/first_request.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/program/secret.h"

namespace maypole::coordinator {
namespace {

constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t kFrameHead = 9;
constexpr size_t kPingBytes = 8;

enum FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kResetStream = 3,
  kSettings = 4,
  kPushPromise = 5,
  kPing = 6,
  kGoAway = 7,
  kContinuation = 9,
};
constexpr uint8_t kAck = 1, kEndStream = 1, kEndHeaders = 4;

uint32_t Number(absl::string_view bytes) {
  uint32_t n = 0;
  for (const char c : bytes) n = n << 8 | static_cast<uint8_t>(c);
  return n;
}

std::string Big(uint32_t n, int bytes) {
  std::string out;
  while (bytes > 0) out += static_cast<char>(n >> (8 * --bytes));
  return out;
}

std::string Frame(FrameType type, uint8_t flags, uint32_t stream,
                  absl::string_view payload) {
  return absl::StrCat(Big(static_cast<uint32_t>(payload.size()), 3),
                      Big(type, 1), Big(flags, 1), Big(stream, 4), payload);
}

// HPACK's integer with a prefix of 7 bits, as the length of a string.
std::string Length(size_t n) {
  if (n < 127) return std::string(1, static_cast<char>(n));
  std::string out(1, '\x7f');
  for (n -= 127; n >= 128; n >>= 7) out += static_cast<char>(128 | (n & 127));
  return out + static_cast<char>(n);
}

// Reads a string's length; false if it is not there, or absurd.
bool ReadLength(absl::string_view* in, size_t* out, bool* huffman) {
  if (in->empty()) return false;
  const auto first = static_cast<uint8_t>(in->front());
  in->remove_prefix(1);
  *huffman = (first & 128) != 0;
  *out = first & 127;
  if (*out < 127) return true;
  for (int shift = 0; shift <= 14 && !in->empty(); shift += 7) {
    const auto next = static_cast<uint8_t>(in->front());
    in->remove_prefix(1);
    *out += static_cast<size_t>(next & 127) << shift;
    if ((next & 128) == 0) return true;
  }
  return false;
}

// A header that is in no table, and that the peer must not add to one.
std::string Literal(absl::string_view name, absl::string_view value) {
  return absl::StrCat(absl::string_view("\0", 1), Length(name.size()), name,
                      Length(value.size()), value);
}

// https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md,
// Status-Message
std::string PercentEncoded(absl::string_view text) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    if (c >= ' ' && c <= '~' && c != '%') {
      out += c;
    } else {
      const auto byte = static_cast<uint8_t>(c);
      out += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return out;
}

// The code is canonical (RFC 7541, appendix B): codes of one length follow each
// other in the order of their characters. These are the printable ones; the
// others have longer codes, or (NUL) are counted in `first`.
struct CodeLength {
  int bits;
  uint32_t first;  // the code of the first character
  absl::string_view characters;
};
constexpr CodeLength kCodes[] = {
    {5, 0x0, "012aceiost"},
    {6, 0x14, " %-./3456789=A_bdfghlmnpru"},
    {7, 0x5c, ":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"},
    {8, 0xf8, "&*,;XZ"},
    {10, 0x3f8, "!\"()?"},
    {11, 0x7fa, "'+|"},
    {12, 0xffa, "#>"},
    {13, 0x1ff9, "$@[]~"},
    {14, 0x3ffc, "^}"},
    {15, 0x7ffc, "<`{"},
    {19, 0x7fff0, "\\"},
};

}  // namespace

std::string HuffmanEncode(absl::string_view text) {
  std::string out;
  uint64_t bits = 0;
  int count = 0;  // of bits that are not in `out`
  for (const char c : text) {
    for (const CodeLength& code : kCodes) {
      const size_t at = code.characters.find(c);
      if (at == code.characters.npos) continue;
      bits = bits << code.bits | (code.first + at);
      count += code.bits;
    }
    for (; count >= 8; count -= 8)
      out += static_cast<char>(bits >> (count - 8));
  }
  if (count > 0) {  // filled up with ones
    out += static_cast<char>(bits << (8 - count) | (255 >> count));
  }
  return out;
}

FirstRequest::State FirstRequest::Read(absl::string_view bytes) {
  total_ += bytes.size();
  absl::StrAppend(&bytes_, bytes);
  if (state_ == State::kPreface) {
    if (bytes_.size() >= kPreface.size() &&
        absl::StartsWith(bytes_, kPreface)) {
      state_ = State::kFrames;
      read_ = kPreface.size();
    } else if (!absl::StartsWith(kPreface, bytes_)) {
      state_ = State::kMalformed;
    }
  }
  while (state_ == State::kFrames && ReadFrame()) {
  }
  // Bytes after the headers were read with them, and do not count.
  if (state_ <= State::kFrames && total_ >= kMaxFirstBytes) {
    state_ = State::kMalformed;
  }
  return state_;
}

bool FirstRequest::ReadFrame() {
  const absl::string_view rest = absl::string_view(bytes_).substr(read_);
  if (rest.size() < kFrameHead) return false;
  const size_t size = Number(rest.substr(0, 3));
  const auto type = static_cast<uint8_t>(rest[3]);
  const auto flags = static_cast<uint8_t>(rest[4]);
  const absl::string_view payload =
      rest.substr(kFrameHead, size);  // may be short
  const bool whole = payload.size() == size;
  switch (type) {
    case kData:
    case kResetStream:
    case kPushPromise:
    case kGoAway:
    case kContinuation:
      state_ = State::kMalformed;
      return false;
    case kPing:
      if (size != kPingBytes) state_ = State::kMalformed;
      break;
    case kHeaders:
      stream_ = Number(rest.substr(5, 4)) & 0x7fffffff;
      if ((flags & kEndHeaders) == 0 || stream_ == 0) {
        state_ = State::kMalformed;
      }
      break;
    default:
      break;
  }
  // A frame that cannot end within kMaxFirstBytes need not be waited for.
  if (size > kMaxFirstBytes) state_ = State::kMalformed;
  if (state_ == State::kMalformed || !whole) return false;
  if (type == kHeaders) {
    headers_at_ = read_ + kFrameHead;
    headers_size_ = size;
    state_ = State::kComplete;
    return false;
  }
  const bool ack = (flags & kAck) != 0;
  if (type == kPing && !ack) replies_ += Frame(kPing, kAck, 0, payload);
  if (type == kPing || (type == kSettings && ack)) {
    bytes_.erase(read_, kFrameHead + size);
  } else {
    read_ += kFrameHead + size;
  }
  return true;
}

std::string FirstRequest::TakeReplies() { return std::exchange(replies_, {}); }

HeaderValue FirstRequest::Secret() const {
  const absl::string_view headers =
      absl::string_view(bytes_).substr(headers_at_, headers_size_);
  for (const bool huffman : {false, true}) {
    std::string name =
        huffman ? HuffmanEncode(kSecretMetadata) : std::string(kSecretMetadata);
    name.insert(0, 1, static_cast<char>(name.size() | (huffman ? 128 : 0)));
    const size_t at = headers.find(name);
    if (at == headers.npos) continue;
    absl::string_view rest = headers.substr(at + name.size());
    HeaderValue value;
    size_t size = 0;
    if (!ReadLength(&rest, &size, &value.huffman) || size > rest.size()) {
      return {};
    }
    value.bytes = std::string(rest.substr(0, size));
    return value;
  }
  return {};
}

std::string FirstRequest::Refusal(const grpc::Status& status) const {
  const std::string headers = absl::StrCat(
      "\x88",  // :status 200
      Literal("content-type", "application/grpc"),
      Literal("grpc-status",
              absl::StrCat(static_cast<int>(status.error_code()))),
      Literal("grpc-message", PercentEncoded(status.error_message())));
  return absl::StrCat(
      Frame(kSettings, kAck, 0, ""),
      Frame(kHeaders, kEndHeaders | kEndStream, stream_, headers),
      // No error (8 bytes of last stream and code).
      Frame(kGoAway, 0, 0, absl::StrCat(Big(stream_, 4), Big(0, 4))));
}

}  // namespace maypole::coordinator
