// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/metrics/http_answer.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "cohort/net/waker.h"
#include "cohort/rpc/metrics/metrics_text.h"

namespace cohort::rpc::internal {
namespace {

constexpr std::size_t kHeadBytesMax = 8 << 10;
constexpr std::string_view kEmptyLine = "\r\n\r\n";

std::string response(std::string_view status, std::string_view type, const std::string& body) {
  return "HTTP/1.1 " + std::string(status) + "\r\nContent-Type: " + std::string(type) +
         "\r\nContent-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" +
         body;
}

// False at the deadline, or if the connection is gone.
bool wait_for(int socket, short events, Deadline deadline) {
  pollfd entry{socket, events, 0};
  const int count = poll(&entry, 1, net::poll_milliseconds(deadline));
  return (count > 0 && (entry.revents & events) != 0) || (count < 0 && errno == EINTR);
}

bool is_over(ssize_t result) {
  return result == 0 || (result < 0 && errno != EAGAIN && errno != EINTR);
}

}  // namespace

std::string http_answer(std::string_view head, const std::function<std::string()>& metrics) {
  constexpr std::string_view kText = "text/plain; charset=utf-8";
  const std::string_view line = head.substr(0, head.find("\r\n"));
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  const bool is_request = first != std::string_view::npos && last > first &&
                          line.substr(last + 1).starts_with("HTTP/1.");
  if (!is_request) return response("400 Bad Request", kText, "expected a request of HTTP/1.1\n");
  if (line.substr(0, first) != "GET")
    return response("405 Method Not Allowed", kText, "expected GET\n");
  std::string_view path = line.substr(first + 1, last - first - 1);
  path = path.substr(0, path.find('?'));
  if (path != "/metrics") return response("404 Not Found", kText, "expected /metrics\n");
  return response("200 OK", kMetricsType, metrics());
}

void answer_http(const FileDescriptor& socket, const std::function<std::string()>& metrics,
                 Deadline deadline) {
  std::string head;
  std::array<char, 1024> piece;
  while (head.find(kEmptyLine) == std::string::npos) {
    if (head.size() > kHeadBytesMax || !wait_for(socket.get(), POLLIN, deadline)) return;
    const ssize_t count = recv(socket.get(), piece.data(), piece.size(), MSG_DONTWAIT);
    if (is_over(count)) return;
    if (count > 0) head.append(piece.data(), static_cast<std::size_t>(count));
  }
  std::string_view left;
  const std::string answer = http_answer(head, metrics);
  for (left = answer; !left.empty();) {
    if (!wait_for(socket.get(), POLLOUT, deadline)) return;
    const ssize_t count = send(socket.get(), left.data(), left.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (is_over(count)) return;
    if (count > 0) left.remove_prefix(static_cast<std::size_t>(count));
  }
  ::shutdown(socket.get(), SHUT_WR);
}

}  // namespace cohort::rpc::internal
