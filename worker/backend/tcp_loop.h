// TcpLoop: the thread that reads and writes TcpConnections.
//
// Purpose: one thread for many connections, so that data that has arrived is
// reduced and sent on by the thread that has read it.
//
//   auto loop = std::make_unique<TcpLoop>();
//   connection.Adopt(std::move(socket));   // adds itself to its loop
//   ...
//   connection.Close();
//   loop.reset();                          // now it may be destroyed
//
// Thread contract: Add(), Change(), Remove() and Again() from any thread. The
// destructor waits for the thread's end, so another thread must call it.
// Connections that were added must outlive the loop.
#ifndef MAYPOLE_WORKER_BACKEND_TCP_LOOP_H_
#define MAYPOLE_WORKER_BACKEND_TCP_LOOP_H_

#include <mutex>
#include <thread>
#include <vector>

#include "common/system/fd.h"

namespace maypole::worker {

class TcpConnection;

class TcpLoop {
 public:
  // Throws std::runtime_error if no descriptor is free.
  TcpLoop();
  ~TcpLoop();

  // From now on calls connection->OnReadable() when there is something to read.
  // Returns false, with errno, if the kernel refuses it.
  bool Add(int fd, TcpConnection* connection);
  // Chooses what is reported: that there is something to read (a broken
  // connection is always reported as that), and, as OnWritable(), that `fd`
  // takes more bytes.
  void Change(int fd, TcpConnection* connection, bool wants_read,
              bool wants_write);
  void Remove(int fd);
  // Calls connection->OnAgain() once, soon, after what the kernel reports now.
  void Again(TcpConnection* connection);

 private:
  void Main();
  void Wake();

  const Fd epoll_;
  const Fd wake_;     // an eventfd
  std::mutex mutex_;  // guards what follows
  bool stop_ = false;
  std::vector<TcpConnection*> again_;
  std::thread thread_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_TCP_LOOP_H_
