#include "common/board/kill_point.h"

#ifdef MAYPOLE_KILL_POINTS

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>

namespace maypole {
namespace {

struct Order {
  std::string name;
  long nth = 1;
};

Order ReadOrder() {
  const char* text = std::getenv("MAYPOLE_KILL_AT");
  if (text == nullptr) return {};
  const std::string all = text;
  const size_t colon = all.find(':');
  if (colon == std::string::npos) return {all, 1};
  return {all.substr(0, colon), std::atol(all.c_str() + colon + 1)};
}

}  // namespace

void (*kill_point_hook)(const char* name) = nullptr;

void PassKillPoint(const char* name) {
  if (kill_point_hook != nullptr) return kill_point_hook(name);
  static const Order order = ReadOrder();
  static std::atomic<long> passed{0};
  if (order.name != name || passed.fetch_add(1) + 1 != order.nth) return;
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

}  // namespace maypole

#endif  // MAYPOLE_KILL_POINTS
