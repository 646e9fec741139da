// Connection: the unix socket between a rank's process and its executor.
//
// Purpose: messages in order, at once; an end that closes, or dies, is seen by
// the other after what was sent before. What takes time is the reader's turn.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_SIMULATION_PARTS_CONNECTION_H_
#define MAYPOLE_TESTS_SIMULATION_PARTS_CONNECTION_H_

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/system/fd.h"

namespace maypole::simulation {

// What a rank writes to wake the executor of its board.
struct EventFd {
  uint64_t count = 0;
  std::function<void()> on_readable;  // null: nobody watches it any more

  void Write() {
    ++count;
    if (on_readable) on_readable();
  }
};

struct Message {
  std::vector<char> data;
  // With a Welcome.
  Fd board;
  std::shared_ptr<EventFd> wake;
};

// One direction.
struct Pipe {
  std::deque<Message> messages;
  bool closed = false;
  std::function<void()> on_readable;  // of the reader

  void Send(const void* data, size_t bytes, Fd board = Fd(),
            std::shared_ptr<EventFd> wake = nullptr) {
    if (closed) return;
    const char* begin = static_cast<const char*>(data);
    messages.push_back(
        {{begin, begin + bytes}, std::move(board), std::move(wake)});
    if (on_readable) on_readable();
  }
  void Close() {
    if (std::exchange(closed, true)) return;
    if (on_readable) on_readable();
  }
  bool readable() const { return closed || !messages.empty(); }
};

struct Connection {
  Pipe to_executor;
  Pipe to_client;
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_PARTS_CONNECTION_H_
