// FrameOutlet: messages on their way to the maypolerun at the other end of ssh.
//
// Thread contract: not synchronized.
//
// Invariant: never blocks; what is written is a prefix of what was sent, until
// the reader is gone; then everything is dropped.
#ifndef MAYPOLE_CLIENT_LAUNCHER_OUTPUT_FRAME_OUTLET_H_
#define MAYPOLE_CLIENT_LAUNCHER_OUTPUT_FRAME_OUTLET_H_

#include <chrono>
#include <string>

#include "client/launcher/node/node_protocol.h"
#include "client/launcher/output/outlet.h"
#include "common/system/fd.h"

namespace maypole::launcher {

class FrameOutlet : public Outlet {
 public:
  // limit: with more than this waiting it is full; 0: never.
  explicit FrameOutlet(size_t limit) : limit_(limit) {}
  // The descriptor is made non-blocking: it must be nobody else's.
  Status Open(OutputLoop* loop, Fd fd);

  void Send(const google::protobuf::MessageLite& message) {
    SendBytes(EncodeFrame(message));
  }
  void SendBytes(const std::string& bytes);
  // Nothing more will be sent: the reader sees the end.
  void Close();

  bool idle() const override { return pending_.empty(); }
  bool full() const override { return limit_ > 0 && pending_.size() > limit_; }
  void Flush() override;
  // Writes all, waiting for the reader up to limit.
  void Finish(std::chrono::milliseconds limit);

 private:
  size_t limit_;
  std::string pending_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_OUTPUT_FRAME_OUTLET_H_
