// Fuzzes executors' messages to the coordinator: its core gets streams that
// open, send Hello and messages, break, resume and end. They belong to two
// jobs, which may share a node's name or a token. Their messages are honest for
// the state, have a fault, or are parsed bytes. tests/fuzz/executors.h plays
// the executors and checks every answer. A third job must run undisturbed.
#include "tests/fuzz/executors.h"
#include "tests/fuzz/feed.h"

extern "C" const char* FuzzerMissing() {
  namespace proto = maypole::proto;
  static const std::string missing =
      maypole::fuzz::MissingCases(
          {maypole::fuzz::OneofOf<proto::ExecutorMessage>("payload"),
           maypole::fuzz::OneofOf<proto::Decision>("what")}) +
      maypole::fuzz::MissingFaults();
  return missing.c_str();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  maypole::fuzz::Feed feed(data, size);
  maypole::fuzz::Coordinated world(&feed);
  constexpr int kMaxEvents = 400;
  for (int i = 0; i < kMaxEvents && !feed.done(); ++i) world.Event();
  world.Finish();
  return 0;
}
