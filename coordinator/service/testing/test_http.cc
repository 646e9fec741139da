#include "coordinator/service/testing/test_http.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "common/system/fd.h"

namespace maypole::coordinator {

std::string HttpGet(const Address& address, const std::string& path) {
  const Fd socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(address.port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) !=
      0) {
    return "";
  }
  const std::string request =
      "GET " + path + " HTTP/1.0\r\nHost: localhost\r\n\r\n";
  ::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL);
  std::string reply;
  char buffer[4096];
  ssize_t n;
  while ((n = ::recv(socket.get(), buffer, sizeof(buffer), 0)) > 0) {
    reply.append(buffer, n);
  }
  return reply;
}

}  // namespace maypole::coordinator
