// SPDX-License-Identifier: Apache-2.0
// explain(): a sharding plan as text.
#include <sstream>
#include <utility>

#include "cohort/data/auto_shard.h"
#include "cohort/data/functions/dataset_function.h"
#include "cohort/data/rebatch.h"
#include "cohort/data/sharding/shard_plan.h"
#include "cohort/data/stages/stage.h"

namespace cohort {
namespace data {
namespace {

constexpr std::int64_t kNamesShown = 4;
constexpr std::size_t kTextShown = 60;

// Numbers and short strings as text; "" for tensors and programs.
std::string shown(const Nest& value) {
  std::ostringstream text;
  if (value.kind() == Nest::Kind::integer) {
    text << value.integer();
  } else if (value.kind() == Nest::Kind::boolean) {
    text << (value.boolean() ? "true" : "false");
  } else if (value.kind() == Nest::Kind::text && value.text().size() <= kTextShown) {
    text << '"' << value.text() << '"';
  } else if (value.kind() == Nest::Kind::list) {
    const char* separator = "[";
    for (const Nest& item : value.items()) {
      if (item.kind() != Nest::Kind::integer) return "";
      text << std::exchange(separator, ", ") << item.integer();
    }
    text << "]";
  }
  return text.str();
}

// "batch(batch_size = 64, drop_remainder = false)". Omits functions.
std::string shown(const Node& node) {
  std::string text;
  const bool has_function = node.op() == "map" || node.op() == "typed_map" || node.op() == "filter";
  if (!has_function && node.dataset_function() == nullptr) {
    for (const auto& [name, value] : node.attributes()) {
      const std::string part = shown(value);
      if (!part.empty()) text += (text.empty() ? "" : ", ") + name + " = " + part;
    }
  }
  return std::string(node.op()) + (text.empty() ? "" : "(" + text + ")");
}

void show_graph(const Node& node, std::size_t depth, std::ostream& out) {
  out << std::string(depth * 2, ' ') << shown(node) << "\n";
  for (const NodePtr& input : node.inputs()) show_graph(*input, depth + 1, out);
}

// "4 of 10 files: a, e, i". Lists the names only if they are in the graph itself.
std::string files_of(const NameStream& stream, std::int64_t workers, std::int64_t worker) {
  const std::int64_t all = stream.names->cardinality();
  std::ostringstream text;
  if (all < 0) {
    text << "every " << workers << "th file from number " << worker;
  } else {
    text << all / workers + (worker < all % workers ? 1 : 0) << " of " << all << " files";
  }
  if (!is_rows(*stream.names)) return text.str();
  const std::unique_ptr<Stage> names =
      stream.names->start(StageContext({.seed = 1}, Purpose::preview));
  names->skip(worker);
  Fields name;
  for (std::int64_t i = 0; names->next(name); names->skip(workers - 1), ++i) {
    if (i == kNamesShown) return text.str() + ", …";
    if (!StringTensor::is(name.front()) || name.front().dim() > 0) break;
    text << (i == 0 ? ": " : ", ") << StringTensor::of(name.front()).value();
  }
  return text.str();
}

std::string sizes_of(const std::vector<std::int64_t>& sizes) {
  std::string text;
  for (const std::int64_t size : sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return text;
}

class Explanation {
 public:
  Explanation(const Dataset& dataset, std::int64_t workers, std::int64_t replicas)
      : dataset_(dataset), workers_(workers), replicas_(replicas) {}

  std::string operator()() {
    const bool has_replicas = workers_ * replicas_ > 1;
    global_batch_ = has_replicas ? infer_batch_size(dataset_) : -1;
    const ShardPlan plan = plan_shards(of_worker(0), sharding(0));
    decision_ = plan.decision;
    out_ << workers_ << " workers x " << replicas_ << " replicas, global batch "
         << (global_batch_ < 0 ? "not known" : std::to_string(global_batch_)) << "\n"
         << "auto-shard " << decision_.to_string() << "\n";
    for (const std::string& warning : decision_.warnings) out_ << "warning: " << warning << "\n";
    for (std::int64_t worker = 0; worker < workers_; ++worker) show_worker(worker);
    out_ << "the graph of worker 0:\n";
    show_graph(*plan.graph, 1, out_);
    return out_.str();
  }

 private:
  Dataset of_worker(std::int64_t worker) const {
    return rebatch_for(dataset_, {.workers = workers_,
                                  .worker = worker,
                                  .replicas_per_worker = replicas_,
                                  .too_few_files = dataset_.options().too_few_files});
  }

  AutoShardOptions sharding(std::int64_t worker) const {
    return {.num_workers = workers_,
            .index = worker,
            .num_replicas = workers_ * replicas_,
            .too_few_files = dataset_.options().too_few_files};
  }

  void show_worker(std::int64_t worker) {
    out_ << "worker " << worker << ": ";
    switch (decision_.taken) {
      case AutoShardPolicy::file:
        show_files(worker);
        break;
      case AutoShardPolicy::data:
        out_ << "mini-batches " << worker << ", " << worker + workers_ << ", … of all"
             << (decision_.is_by_index ? ", of which it reads no others" : "; it makes all");
        break;
      case AutoShardPolicy::hint:
        out_ << (decision_.hints > 0 ? "its share at the hint" : "everything");
        break;
      default:
        out_ << "everything";
    }
    const bool is_sized = workers_ * replicas_ > 1 && global_batch_ > 0 && !is_split();
    if (is_sized) {
      out_ << "; batches of "
           << sizes_of(rebatch_sizes(global_batch_, workers_, replicas_, worker));
    }
    out_ << "\n";
  }

  bool is_split() const {
    return decision_.is_split || dataset_.options().rebatch == RebatchMode::split;
  }

  void show_files(std::int64_t worker) {
    const auto walked = shard_files(dataset_.node(), workers_, worker);
    if (decision_.files.empty()) {
      out_ << "everything";
      return;
    }
    const char* separator = "";
    for (const NameStream& stream : std::get<FileShards>(walked).streams) {
      out_ << separator << files_of(stream, workers_, worker);
      separator = "; and ";
    }
  }

  const Dataset& dataset_;
  std::int64_t workers_;
  std::int64_t replicas_;
  std::int64_t global_batch_ = -1;
  ShardDecision decision_;
  std::ostringstream out_;
};

}  // namespace
}  // namespace data

std::string explain(const Dataset& dataset, std::int64_t workers,
                    std::int64_t replicas_per_worker) {
  return data::Explanation(dataset, workers, replicas_per_worker)();
}

}  // namespace cohort
