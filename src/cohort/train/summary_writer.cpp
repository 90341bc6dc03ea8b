// SPDX-License-Identifier: Apache-2.0
#include "cohort/train/summary_writer.h"

#include <ATen/core/TensorBody.h>
#include <google/protobuf/wire_format_lite.h>

#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/mutex.h"
#include "cohort/core/string_tensor.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/function/trace.h"
#include "cohort/strategy/replica_context.h"
#include "cohort/strategy/strategy.h"
#include "cohort/strategy/strategy_extended.h"
#include "cohort/train/summaries/event_queue.h"
#include "cohort/train/summaries/histogram.h"
#include "cohort/train/summaries/png.h"
#include "cohort/train/summaries/program_graph.h"

namespace cohort {
namespace {

constexpr std::int32_t kStringOfTensorflow = 7;  // DT_STRING

bool is_utf8(std::string_view text) {
  return google::protobuf::internal::IsStructurallyValidUTF8(text.data(),
                                                             static_cast<int>(text.size()));
}

void check_call(std::string_view method, std::string_view name) {
  COHORT_CHECK(!name.empty() && is_utf8(name), ErrorCode::invalid_argument,
               "[train.summary_writer] expected a name in UTF-8 for ", method, "(), got ",
               name.empty() ? "''" : "bytes that are not", "; name the curve, such as 'loss'");
  COHORT_CHECK(
      function::Trace::current() == nullptr, ErrorCode::failed_precondition,
      "[train.summary_writer] expected ", method, "('", name,
      "') outside of steps that are traced, got it inside of one, where it would run once; "
      "return the value from the step and write it after it");
}

train::EventQueueOptions queue_options(const SummaryWriterOptions& options) {
  const auto check = [](bool is_positive, std::string_view option) {
    COHORT_CHECK(is_positive, ErrorCode::invalid_argument,
                 "[train.summary_writer] expected SummaryWriterOptions::", option,
                 " > 0, got one that is not; leave it out for the default");
  };
  check(options.queue_elements_max > 0, "queue_elements_max");
  check(options.queue_bytes_max > 0, "queue_bytes_max");
  check(options.flush_interval > Duration::zero(), "flush_interval");
  check(options.timeout > Duration::zero(), "timeout");
  return {.elements_max = static_cast<std::size_t>(options.queue_elements_max),
          .bytes_max = static_cast<std::size_t>(options.queue_bytes_max),
          .flush_interval = options.flush_interval,
          .timeout = options.timeout,
          .clock = options.clock};
}

train::EventEntry entry_of(std::string_view name, std::int64_t step) {
  train::EventEntry entry;
  entry.event.set_wall_time(train::event_time());
  entry.event.set_step(step);
  entry.event.mutable_summary()->add_value()->set_tag(std::string(name));
  return entry;
}

train::proto::Summary::Value& value_of(train::EventEntry& entry) {
  return *entry.event.mutable_summary()->mutable_value(0);
}

}  // namespace

class SummaryWriter::Impl {
 public:
  Impl(Strategy* strategy, std::string folder, const SummaryWriterOptions& options)
      : strategy_(strategy),
        folder_(std::move(folder)),
        has_jsonl_(options.has_jsonl),
        options_(queue_options(options)) {
    if (is_first_worker()) open();
  }

  // Whether a summary of this thread is to be written.
  bool writes_here() const {
    const ReplicaContext* const replica = get_replica_context();
    return (replica == nullptr || replica->local_replica_id() == 0) && is_first_worker();
  }
  void push(train::EventEntry entry) {
    // The memory of the messages around it is small beside what an entry is for.
    constexpr std::size_t kMessageBytes = 256;
    entry.bytes = kMessageBytes + entry.event.ByteSizeLong();
    open().push(std::move(entry));
  }
  void flush(std::optional<Duration> timeout) {
    if (train::EventQueue* const queue = opened()) queue->flush(timeout.value_or(options_.timeout));
  }
  void close() {
    {
      const Lock lock(mutex_);
      is_closed_ = true;  // a worker that becomes the first one later opens nothing
    }
    if (train::EventQueue* const queue = opened()) queue->close();
  }

 private:
  bool is_first_worker() const {
    return strategy_ == nullptr || strategy_->extended().should_save_summary();
  }
  train::EventQueue* opened() const {
    const Lock lock(mutex_);
    return queue_.get();
  }
  train::EventQueue& open() {
    const Lock lock(mutex_);
    if (queue_ == nullptr) {
      COHORT_CHECK(!is_closed_, ErrorCode::failed_precondition,
                   "[train.summary_writer] expected an open writer, got that of '", folder_,
                   "', which was closed; call close() after the last summary");
      queue_ = std::make_unique<train::EventQueue>(
          std::make_unique<train::EventFiles>(folder_, has_jsonl_), options_);
    }
    return *queue_;
  }

  Strategy* const strategy_;  // nullptr: this process writes
  const std::string folder_;
  const bool has_jsonl_;
  const train::EventQueueOptions options_;
  mutable Mutex mutex_;
  bool is_closed_ COHORT_GUARDED_BY(mutex_) = false;
  // nullptr: this has not been the first worker so far.
  std::unique_ptr<train::EventQueue> queue_ COHORT_GUARDED_BY(mutex_);
};

SummaryWriter::SummaryWriter(const std::string& folder, const SummaryWriterOptions& options)
    : impl_(std::make_unique<Impl>(nullptr, folder, options)) {}

SummaryWriter::SummaryWriter(Strategy& strategy, const std::string& folder,
                             const SummaryWriterOptions& options)
    : impl_(std::make_unique<Impl>(&strategy, folder, options)) {}

SummaryWriter::~SummaryWriter() = default;

void SummaryWriter::scalar(std::string_view name, double value, std::int64_t step) {
  check_call("scalar", name);
  if (!impl_->writes_here()) return;
  train::EventEntry entry = entry_of(name, step);
  value_of(entry).set_simple_value(static_cast<float>(value));
  entry.scalar = value;
  impl_->push(std::move(entry));
}

void SummaryWriter::scalar(std::string_view name, const at::Tensor& value, std::int64_t step) {
  const bool is_number = value.defined() && !StringTensor::is(value) && !value.is_complex() &&
                         !value.is_sparse() && value.numel() == 1;
  COHORT_CHECK(is_number, ErrorCode::invalid_argument,
               "[train.summary_writer] expected one real number as scalar '", name, "', got ",
               value.defined() ? TensorSpec::of(value).to_string() : "an undefined tensor",
               "; give it a mean() or a sum()");
  check_call("scalar", name);
  if (impl_->writes_here()) scalar(name, value.item().toDouble(), step);
}

void SummaryWriter::histogram(std::string_view name, const at::Tensor& values, std::int64_t step) {
  check_call("histogram", name);
  if (!impl_->writes_here()) return;
  train::EventEntry entry = entry_of(name, step);
  *value_of(entry).mutable_histo() = train::histogram_of(values, name);
  impl_->push(std::move(entry));
}

void SummaryWriter::text(std::string_view name, std::string_view text, std::int64_t step) {
  check_call("text", name);
  COHORT_CHECK(is_utf8(text), ErrorCode::invalid_argument,
               "[train.summary_writer] expected UTF-8 as text '", name, "', got ", text.size(),
               " bytes that are not; write them as digits if they are no text");
  if (!impl_->writes_here()) return;
  train::EventEntry entry = entry_of(name, step);
  value_of(entry).mutable_metadata()->mutable_plugin_data()->set_plugin_name("text");
  train::proto::TensorProto& tensor = *value_of(entry).mutable_tensor();
  tensor.set_dtype(kStringOfTensorflow);
  tensor.mutable_tensor_shape()->add_dim()->set_size(1);
  tensor.add_string_val(std::string(text));
  impl_->push(std::move(entry));
}

void SummaryWriter::image(std::string_view name, const at::Tensor& pixels, std::int64_t step) {
  check_call("image", name);
  if (!impl_->writes_here()) return;
  train::EventEntry entry = entry_of(name, step);
  train::proto::Summary::Image& image = *value_of(entry).mutable_image();
  image.set_encoded_image_string(train::png_of(pixels, name));
  image.set_height(static_cast<std::int32_t>(pixels.size(0)));
  image.set_width(static_cast<std::int32_t>(pixels.size(1)));
  image.set_colorspace(static_cast<std::int32_t>(pixels.size(2)));
  impl_->push(std::move(entry));
}

void SummaryWriter::graph(std::string_view program) {
  check_call("graph", "program");
  if (!impl_->writes_here()) return;
  const train::proto::GraphDef graph = train::graph_of_program(program);
  train::EventEntry entry;
  entry.event.set_wall_time(train::event_time());
  graph.SerializeToString(entry.event.mutable_graph_def());
  impl_->push(std::move(entry));
}

void SummaryWriter::flush(std::optional<Duration> timeout) { impl_->flush(timeout); }

void SummaryWriter::close() { impl_->close(); }

}  // namespace cohort
