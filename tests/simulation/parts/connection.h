// Connection: the unix socket between a rank's process and its executor.
//
// Purpose: delivers messages in order and at once. When an end closes or dies,
// the other end sees this after all earlier messages. Only the reader's next
// turn takes time.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_SIMULATION_PARTS_CONNECTION_H_
#define MAYPOLE_TESTS_SIMULATION_PARTS_CONNECTION_H_

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/system/fd.h"

namespace maypole::simulation {

// A rank writes to it to wake the executor of its board.
struct EventFd {
  std::string epoch_key;  // of the board's epoch; unique in a run
  uint64_t count = 0;
  std::function<void()> on_readable;  // null: it is not watched any more

  void Write() {
    ++count;
    if (on_readable) on_readable();
  }
};

struct Message {
  std::vector<char> data;
  // Only with a Welcome.
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

// What other processes can see of a process: whether it has ended.
struct ProcessHandle {
  bool ended = false;
  std::map<const void*, std::function<void()>> on_end;  // by who watches

  void End() {
    if (std::exchange(ended, true)) return;
    for (const auto& [who, what] : on_end) what();
  }
};

struct Connection {
  Pipe to_executor;
  Pipe to_client;
  std::shared_ptr<ProcessHandle> process;  // null: it cannot be seen
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_PARTS_CONNECTION_H_
