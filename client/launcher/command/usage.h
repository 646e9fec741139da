// The text of maypolerun --help before and after the list of options.
#ifndef MAYPOLE_CLIENT_LAUNCHER_COMMAND_USAGE_H_
#define MAYPOLE_CLIENT_LAUNCHER_COMMAND_USAGE_H_

namespace maypole::launcher {

extern const char kAbout[];  // before the options
extern const char kNotes[];  // after the options

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_COMMAND_USAGE_H_
