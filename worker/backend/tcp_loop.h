// TcpLoop: the thread that reads and writes the connections of TcpTransports.
//
// Purpose: one thread for all connections of a backend, so that data that has
// arrived is reduced and sent on by the thread that has read it.
//
// Thread contract: Add(), Change() and Remove() from any thread. Stop() from
// any but the loop's own; it returns when the thread has ended, and may be
// called repeatedly. A pair must live until it is removed and the loop is
// stopped.
#ifndef MAYPOLE_WORKER_BACKEND_TCP_LOOP_H_
#define MAYPOLE_WORKER_BACKEND_TCP_LOOP_H_

#include <mutex>
#include <thread>

#include "common/system/fd.h"

namespace maypole::worker {

class TcpPair;

class TcpLoop {
 public:
  // Throws std::runtime_error if no descriptor is free.
  TcpLoop();
  ~TcpLoop() { Stop(); }

  // From now on calls pair->OnReadable() when there is something to read.
  // Returns false, with errno, if the kernel refuses it.
  bool Add(int fd, TcpPair* pair);
  // Chooses what is reported: that there is something to read (a broken
  // connection is always reported as that), and, as OnWritable(), that `fd`
  // takes more bytes.
  void Change(int fd, TcpPair* pair, bool wants_read, bool wants_write);
  void Remove(int fd);
  void Stop();

 private:
  void Main();

  const Fd epoll_;
  const Fd stop_;     // an eventfd
  std::mutex mutex_;  // for Stop()
  std::thread thread_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_TCP_LOOP_H_
