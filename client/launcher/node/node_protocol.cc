#include "client/launcher/node/node_protocol.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/util/delimited_message_util.h>

#include <algorithm>
#include <charconv>

#include "client/launcher/command/options.h"
#include "common/version.h"

namespace maypole::launcher {
namespace {

using google::protobuf::MessageLite;
using google::protobuf::io::CodedInputStream;

constexpr std::string_view kPreambleStart = "maypole-node protocol=";
constexpr std::string_view kPreambleVersion = " version=";
constexpr int kMaxVarintBytes = 10;

}  // namespace

Status Garbled(const std::string& what) {
  return Status(Code::kDataLoss,
                "invalid data came through ssh (" + what + ")");
}

FromNode OutputOf(int rank, RankOutput::Stream stream, std::string_view bytes) {
  FromNode message;
  message.mutable_rank_output()->set_rank(rank);
  message.mutable_rank_output()->set_stream(stream);
  message.mutable_rank_output()->set_bytes(bytes.data(), bytes.size());
  return message;
}

FromNode EndOf(int rank, const Exit& exit) {
  FromNode message;
  message.mutable_rank_ended()->set_rank(rank);
  message.mutable_rank_ended()->set_signaled(exit.signaled);
  message.mutable_rank_ended()->set_value(exit.value);
  message.mutable_rank_ended()->set_finished(exit.finished);
  return message;
}

Exit ExitOf(const RankEnded& ended) {
  return {.signaled = ended.signaled(),
          .value = ended.value(),
          .finished = ended.finished()};
}

std::string EncodeFrame(const MessageLite& message) {
  std::string frame;
  {
    google::protobuf::io::StringOutputStream stream(&frame);
    google::protobuf::util::SerializeDelimitedToZeroCopyStream(message,
                                                               &stream);
  }
  return frame;
}

Status FrameReader::Next(MessageLite* out, bool* found) {
  *found = false;
  const std::string_view rest = std::string_view(buffer_).substr(taken_);
  if (!broken_.ok() || rest.empty()) return broken_;
  const auto* bytes = reinterpret_cast<const uint8_t*>(rest.data());
  const auto head =
      static_cast<int>(std::min<size_t>(rest.size(), kMaxVarintBytes));
  CodedInputStream prefix(bytes, head);
  uint64_t length = 0;
  if (!prefix.ReadVarint64(&length)) {
    if (head < kMaxVarintBytes) return Status();
    return broken_ = Garbled("an unterminated length");
  }
  if (length == 0 || length > max_frame_) {
    return broken_ = Garbled("a frame of " + std::to_string(length) +
                             " bytes; 1 to " + std::to_string(max_frame_) +
                             " are expected");
  }
  const auto start = static_cast<size_t>(prefix.CurrentPosition());
  if (rest.size() - start < length) return Status();
  if (!out->ParseFromArray(bytes + start, static_cast<int>(length))) {
    return broken_ = Garbled("a frame of " + std::to_string(length) +
                             " bytes that is not a message");
  }
  *found = true;
  taken_ += start + length;
  if (taken_ >= buffer_.size() / 2) {
    buffer_.erase(0, taken_);
    taken_ = 0;
  }
  return Status();
}

std::string Preamble() {
  // The newline puts it on a line of its own even after output of a shell.
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
