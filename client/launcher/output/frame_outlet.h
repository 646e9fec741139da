// FrameOutlet: queues messages for the maypolerun at the other end of ssh.
//
// Thread contract: not synchronized.
//
// Invariants: nothing blocks. The bytes written are a prefix of the bytes sent;
// when the reader is gone, everything is dropped.
#ifndef MAYPOLE_CLIENT_LAUNCHER_OUTPUT_FRAME_OUTLET_H_
#define MAYPOLE_CLIENT_LAUNCHER_OUTPUT_FRAME_OUTLET_H_

#include <string>

#include "client/launcher/node/node_protocol.h"
#include "client/launcher/output/outlet.h"
#include "common/system/fd.h"

namespace maypole::launcher {

class FrameOutlet : public Outlet {
 public:
  // limit: the outlet is full while more bytes than this wait; 0: never full.
  explicit FrameOutlet(size_t limit) : limit_(limit) {}
  // Makes the descriptor non-blocking, so no other process may share it.
  Status Open(OutputLoop* loop, Fd fd);

  void Send(const google::protobuf::MessageLite& message) {
    SendBytes(EncodeFrame(message));
  }
  void SendBytes(const std::string& bytes);
  // Drops queued bytes and closes the descriptor: the reader sees the end of
  // file.
  void Close();

  bool idle() const override { return pending_.empty(); }
  bool full() const override { return limit_ > 0 && pending_.size() > limit_; }
  void Flush() override;

 private:
  size_t limit_;
  std::string pending_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_OUTPUT_FRAME_OUTLET_H_
