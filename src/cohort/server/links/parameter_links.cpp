// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/links/parameter_links.h"

#include <utility>

#include "cohort/server/session/open_pushes.h"

namespace cohort::server {

ParameterLinks::ParameterLinks(ParameterLinkOptions options) : options_(std::move(options)) {
  for (std::size_t i = 0; i < options_.addresses.size(); ++i)
    links_.push_back(std::make_unique<Link>());
}

std::shared_ptr<rpc::Requester> ParameterLinks::get(std::uint32_t ps) {
  COHORT_CHECK(ps < links_.size(), ErrorCode::invalid_argument,
               "[server.pull] expected a ps index below ", links_.size(), ", got ", ps,
               "; the worker's cluster spec differs from the coordinator's");
  Link& link = *links_[ps];
  const Lock lock(link.mutex);
  expect_open(ps);
  if (link.requester && link.requester->is_open()) return link.requester;
  if (std::exchange(link.requester, nullptr)) ++losses_;
  const Duration patience = link.was_silent ? options_.connect_timeout : options_.data_timeout;
  const std::string task = "ps:" + std::to_string(ps);
  try {
    link.requester = rpc::connect_task({.address = options_.addresses[ps],
                                        .task = task,
                                        .caller = options_.self,
                                        .coordinator_incarnation = options_.coordinator_incarnation,
                                        .payload_checksums = options_.payload_checksums,
                                        .deadline = Deadline::after(options_.connect_timeout),
                                        .silence_deadline = Deadline::after(patience),
                                        .should_stop = [this] { return is_closed_.load(); }})
                         .data;
    link.was_silent = false;
  } catch (const Error& error) {
    expect_open(ps);
    if (error.code() != ErrorCode::deadline_exceeded) throw;
    const Duration before = link.was_silent ? options_.data_timeout : Duration::zero();
    link.was_silent = true;
    throw to_error(LateAnswer{
        .operation = "connect", .expected = "an answer", .ps = task, .waited = before + patience});
  }
  return link.requester;
}

void ParameterLinks::note_silence(std::uint32_t ps) {
  Link& link = *links_.at(ps);
  const Lock lock(link.mutex);
  link.was_silent = true;
}

void ParameterLinks::expect_open(std::uint32_t ps) const {
  if (!is_closed_) return;
  throw Error(ErrorCode::cancelled, "[server.pull] " + options_.self.task +
                                        " ends: it asks nothing more of ps:" + std::to_string(ps))
      .at(options_.self.task);
}

void ParameterLinks::close() noexcept {
  is_closed_ = true;
  for (const auto& link : links_) {
    const Lock lock(link->mutex);
    if (link->requester) link->requester->leave();
  }
}

}  // namespace cohort::server
