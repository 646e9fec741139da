// The files of the dashboard's page, compiled into the program. Chart.js
// (https://www.chartjs.org, MIT license) is Debian's.
//
// Thread contract: values.
#ifndef MAYPOLE_COORDINATOR_DASHBOARD_ASSETS_H_
#define MAYPOLE_COORDINATOR_DASHBOARD_ASSETS_H_

#include <vector>

#include "absl/strings/string_view.h"

namespace maypole::coordinator {

struct Asset {
  absl::string_view path;  // "/app.js"
  absl::string_view type;  // of its content
  absl::string_view bytes;
};

const std::vector<Asset>& Assets();

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_DASHBOARD_ASSETS_H_
