// What maypolerun's --help says besides its options.
#ifndef MAYPOLE_CLIENT_LAUNCHER_COMMAND_USAGE_H_
#define MAYPOLE_CLIENT_LAUNCHER_COMMAND_USAGE_H_

namespace maypole::launcher {

extern const char kAbout[];  // before the options
extern const char kNotes[];  // after them

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_COMMAND_USAGE_H_
