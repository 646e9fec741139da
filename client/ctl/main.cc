#include "client/ctl/program.h"

int main(int argc, char** argv) {
  return maypole::ctl::Main({argv + 1, argv + argc});
}
