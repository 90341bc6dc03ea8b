// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/closures/program_host.h"

#include "cohort/core/error.h"

namespace cohort::server {
namespace {

std::uint64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  std::uint64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

}  // namespace

// Sends all requests together. The link to a server that does not answer in time is closed, which
// also ends pushes that wait on it. Throws the first error, after all answers to pushes were
// counted.
std::vector<rpc::Frame> ProgramHost::ask(std::vector<Question> questions) {
  // All links are made before anything is sent, because an exception for a server that cannot be
  // reached would lose the answers of the others.
  std::vector<std::shared_ptr<rpc::Requester>> links;
  std::vector<rpc::Requester::Request> requests;
  for (Question& question : questions) {
    links.push_back(access_.links.get(question.ps));
    requests.push_back({links.back().get(), std::move(question.frame)});
  }
  std::vector<std::optional<rpc::Answer>> come =
      rpc::Requester::ask_all(std::move(requests), Deadline::after(access_.data_timeout));
  for (std::size_t i = 0; i < questions.size(); ++i) {
    if (come[i]) continue;
    const Error late = to_error(LateAnswer{.operation = questions[i].is_push ? "push" : "pull",
                                           .expected = "an answer",
                                           .ps = "ps:" + std::to_string(questions[i].ps),
                                           .waited = access_.data_timeout});
    links[i]->give_up(late);
    access_.links.note_silence(questions[i].ps);
    come[i] = late;
  }
  std::optional<Error> first_error;
  std::vector<rpc::Frame> frames;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const std::string ps = "ps:" + std::to_string(questions[i].ps);
    std::optional<Error> error;
    if (questions[i].is_push) {
      error = running_->acknowledge(*come[i], ps);
    } else if (const Error* refused = std::get_if<Error>(&*come[i])) {
      error = Error(*refused).at(ps).during("pulling variables from " + ps);
    }
    if (error && !first_error) first_error = error;
    if (!error) frames.push_back(std::get<rpc::Frame>(std::move(*come[i])));
  }
  if (first_error) throw Error(*first_error);
  return frames;
}

void ProgramHost::pull(const std::vector<PlacedProgram::Pull>& pulls,
                       std::span<at::Tensor> variables) {
  if (pulls.empty()) return;
  std::vector<Question> questions;
  for (const PlacedProgram::Pull& pull : pulls) questions.push_back(question(pull));
  std::vector<rpc::Frame> answers = ask(std::move(questions));
  for (std::size_t i = 0; i < pulls.size(); ++i) take(pulls[i], std::move(answers[i]), variables);
}

ProgramHost::Question ProgramHost::question(const PlacedProgram::Pull& pull) {
  return {pull.ps, false, rpc::to_frame(rpc::PullRequest{pull.ids, pull.wants_versions})};
}

void ProgramHost::take(const PlacedProgram::Pull& pull, rpc::Frame answer,
                       std::span<at::Tensor> variables) {
  rpc::PullReply reply = rpc::pull_reply_of(std::move(answer));
  const std::size_t versions = pull.wants_versions ? pull.ids.size() : 0;
  COHORT_CHECK(reply.values.size() == pull.ids.size() && reply.versions.size() == versions,
               ErrorCode::data_loss, "[server.pull] expected ", pull.ids.size(), " values and ",
               versions, " versions from ps:", pull.ps, ", got ", reply.values.size(), " and ",
               reply.versions.size());
  running_->end.pulled_bytes += bytes_of(reply.values);
  for (std::size_t k = 0; k < pull.ids.size(); ++k) {
    variables[pull.positions[k]] = std::move(reply.values[k]);
    if (pull.wants_versions) set_version(pull.positions[k], reply.versions[k]);
  }
}

std::vector<PushCollector::Push> ProgramHost::take_pushes() {
  std::vector<Push> pushes = take_segment();
  for (Push& push : pushes) {
    push.request.closure_id = running_->end.closure_id;
    push.request.low_watermark = low_watermark_;
    for (const rpc::Effect& effect : push.request.effects)
      running_->end.pushed_bytes += bytes_of(effect.tensors);
  }
  return pushes;
}

// A connection keeps its order, so the values that are pulled after a push include its updates. If
// a push has failed, this throws before anything is computed from these values.
std::vector<at::Tensor> ProgramHost::next_segment(std::span<const std::int64_t> variables) {
  std::vector<Question> questions;
  for (Push& push : take_pushes())
    questions.push_back({push.ps, true, rpc::to_frame(std::move(push.request))});
  const std::size_t pushes = questions.size();
  const std::vector<PlacedProgram::Pull> pulls = placed().pulls_of(variables);
  for (const PlacedProgram::Pull& pull : pulls) questions.push_back(question(pull));
  std::vector<rpc::Frame> answers = ask(std::move(questions));
  std::vector<at::Tensor> all(placed().places.size());
  for (std::size_t i = 0; i < pulls.size(); ++i)
    take(pulls[i], std::move(answers[pushes + i]), all);
  std::vector<at::Tensor> values;
  for (const std::int64_t variable : variables)
    values.push_back(std::move(all[static_cast<std::size_t>(variable)]));
  return values;
}

void ProgramHost::push() {
  for (Push& push : take_pushes()) {
    const std::string ps = "ps:" + std::to_string(push.ps);
    const std::shared_ptr<rpc::Requester> link = access_.links.get(push.ps);
    rpc::Frame frame = rpc::to_frame(std::move(push.request));
    const std::uint64_t number = access_.open_pushes->add(ps, link, Clock::system().now());
    rpc::Requester::OnAnswer on_answer = [running = running_, ps, number,
                                          open = access_.open_pushes](const rpc::Answer& answer) {
      open->answered(number);
      if (const std::optional<Error> error = running->acknowledge(answer, ps))
        running->fail(*error);
      running->release();
    };
    // Nothing may throw between this and request(), whose answer calls release().
    ++running_->unacknowledged;
    link->request(std::move(frame), std::move(on_answer));
  }
}

}  // namespace cohort::server
