// What executors may say to the coordinator: its core gets streams that open,
// say hello, send, break, resume and end, of two jobs that share a node's name
// or a token or not, with numbers in order and messages that are honest for
// the state, with a fault, or parsed bytes. tests/fuzz/executors.h plays them
// and judges every answer. A job that is not theirs runs along undisturbed.
#include "tests/fuzz/executors.h"
#include "tests/fuzz/feed.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  maypole::fuzz::Feed feed(data, size);
  maypole::fuzz::Coordinated world(&feed);
  constexpr int kMaxEvents = 400;
  for (int i = 0; i < kMaxEvents && !feed.done(); ++i) world.Event();
  world.Finish();
  return 0;
}
