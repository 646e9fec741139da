#include "worker/program.h"

int main(int argc, char** argv) {
  return maypole::worker::Main({argv + 1, argv + argc});
}
