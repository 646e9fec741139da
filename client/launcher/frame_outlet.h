// FrameOutlet: messages on their way to the maypolerun at the other end of ssh.
//
// Thread contract: not synchronized.
//
// Invariant: never blocks; what is written is a prefix of what was sent, until
// the reader is gone; then everything is dropped.
#ifndef MAYPOLE_CLIENT_LAUNCHER_FRAME_OUTLET_H_
#define MAYPOLE_CLIENT_LAUNCHER_FRAME_OUTLET_H_

#include <chrono>
#include <string>

#include "client/launcher/node_protocol.h"
#include "client/launcher/outlet.h"
#include "common/fd.h"

namespace maypole::launcher {

class FrameOutlet : public Outlet {
 public:
  // limit: with more than this waiting it is full; 0: never. The descriptor is
  // made non-blocking: it must be nobody else's.
  FrameOutlet(Fd fd, size_t limit);

  void Send(const NodeMessage& message) { SendBytes(EncodeFrame(message)); }
  void SendBytes(const std::string& bytes);
  // Nothing more will be sent: the reader sees the end.
  void Close();

  int fd() const override { return fd_.get(); }
  bool idle() const override { return pending_.empty(); }
  bool full() const override { return limit_ > 0 && pending_.size() > limit_; }
  void Flush() override;
  // Writes all, waiting for the reader up to limit.
  void Finish(std::chrono::milliseconds limit);

 private:
  Fd fd_;
  size_t limit_;
  std::string pending_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_FRAME_OUTLET_H_
