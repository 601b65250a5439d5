"""For which metrics the mean over ranks is the metric of all data, and why it is not for others.

A metric is averageable when it is a mean over samples: with equal counts on every rank, the mean
of the parts is the whole. What is not listed is unknown, and rules are silent about it. Users list
their own (``averageable`` and ``non-averageable`` of ``[tool.distlint]``), and those come first.

The tables hold for torchmetrics, torcheval, scikit-learn and torch. Names are those of the
functions without the words that only tell tasks and implementations apart, see ``stem``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LIBRARIES = (
    "sklearn.metrics",
    "torchmetrics",
    "pytorch_lightning.metrics",
    "torcheval.metrics",
    "scipy.stats",
    "segmentation_models_pytorch.metrics",
)
Kind = Literal["averageable", "not averageable", "other"]
_LOSSES = ("torch.nn.functional.", "torch.nn.")
_DROPPED = ("windowed", "binned", "binary", "multiclass", "multilabel")
_ENDINGS = ("score", "loss", "curve")
EXP_REASON = "exp of a mean is not the mean of exps"
ROOT_REASON = "the root of a mean is not the mean of roots"
CLASSES_REASON = "it averages over classes, and a class has another count on every rank"
# By the reason: names.
_NOT_AVERAGEABLE = {
    "its denominator counts predictions or classes, not samples, and differs between ranks": """
        f1 acc_and_f1 fbeta precision recall sensitivity precision_recall_fscore_support
        class_likelihood_ratios precision_recall specificity negative_predictive_value jaccard
        jaccard_index critical_success_index mean_iou dice fairness demographic_parity
        equal_opportunity group_stat_rates groups_stat_rates panoptic_quality
        modified_panoptic_quality
    """,
    CLASSES_REASON: "balanced_accuracy",
    "it compares every pair of samples, also those on different ranks": """
        roc_auc auroc auc log_auc auprc average_precision recall_at_fixed_precision
        precision_at_fixed_recall sensitivity_at_specificity specificity_at_sensitivity
        retrieval_recall_at_fixed_precision eer concordance_index mean_average_precision
        spearman_corrcoef spearmanr kendall_rank_corrcoef kendalltau
    """,
    "it is computed from the whole confusion matrix": """
        matthews_corrcoef cohen_kappa fleiss_kappa cramers_v pearsons_contingency_coefficient
        theils_u tschuprows_t
    """,
    "it bins all predictions before it compares": "calibration_error",
    "its denominator is a sum over the data, which differs between ranks": """
        normalized_entropy weighted_calibration throughput intersection_over_union
        complete_intersection_over_union distance_intersection_over_union
        generalized_intersection_over_union relative_squared_error
        weighted_mean_absolute_percentage_error bleu sacre_bleu chrf translation_edit_rate
        word_error_rate char_error_rate match_error_rate word_info_lost word_information_lost
        word_info_preserved word_information_preserved
    """,
    "it is relative to a baseline that is computed from all data": """
        d2_brier d2_log d2_absolute_error d2_pinball d2_tweedie
    """,
    "its means, variances and products must be those of all data": """
        pearson_corrcoef pearsonr corrcoef concordance_corrcoef r2 explained_variance
    """,
    ROOT_REASON: """
        root_mean_squared_error root_mean_squared_log_error normalized_root_mean_squared_error
        minkowski_distance relative_average_spectral_error
    """,
    "a quantile of all data is not a mean of quantiles": """
        median_absolute_error perceptual_path_length
    """,
    "the extreme of all data is not a mean of extremes": "max_error",
    "it takes a power or a product of averages over all images": """
        spectral_distortion_index spatial_distortion_index quality_with_no_reference
    """,
    "it is a sum, of which the mean over ranks is only a share": "total_variation",
    "it compares distributions of all data": """
        frechet_inception_distance frechet_audio_distance kernel_inception_distance
        memorization_informed_frechet_inception_distance inception
    """,
    EXP_REASON: "perplexity",
    "it compares clusterings of all data": """
        mutual_info normalized_mutual_info adjusted_mutual_info adjusted_rand rand homogeneity
        completeness v_measure homogeneity_completeness_v_measure fowlkes_mallows
        fowlkes_mallows_index cluster_accuracy consensus silhouette dunn_index calinski_harabasz
        davies_bouldin
    """,
}
_AVERAGEABLE = {
    "a mean of hits over samples": "accuracy top_k_accuracy topk_multilabel_accuracy",
    "a mean of misses over samples": "zero_one",
    "a mean over labels and samples": "hamming_distance hamming",
    "a mean over samples": """
        exact_match hinge brier click_through_rate cosine_similarity kl_divergence
        jensen_shannon_divergence continuous_ranked_probability coverage_error ranking
        ranking_average_precision label_ranking label_ranking_average_precision generalized_dice
        hausdorff_distance procrustes_disparity
    """,
    "log loss: a mean over samples": "log",
    "a mean over queries": """
        hit_rate reciprocal_rank ndcg dcg retrieval_auroc retrieval_average_precision
        retrieval_fall_out retrieval_hit_rate retrieval_map retrieval_mrr retrieval_ndcg
        retrieval_normalized_dcg retrieval_precision retrieval_r_precision retrieval_recall
        retrieval_reciprocal_rank
    """,
    "a mean over values": """
        mean_absolute_error mean_squared_log_error mean_absolute_percentage_error
        symmetric_mean_absolute_percentage_error log_cosh_error tweedie_deviance mean_gamma_deviance
        mean_poisson_deviance mean_tweedie_deviance mean_pinball
    """,
    "a mean over values, unless squared=False takes its root": "mean_squared_error",
    "a mean, weighted by what it was given": "mean nan_mean",
    "a mean over images": """
        structural_similarity_index_measure universal_image_quality_index
        multi_scale_structural_similarity_index_measure visual_information_fidelity
        learned_perceptual_image_patch_similarity spatial_correlation_coefficient
        deep_image_structure_and_texture_similarity spectral_angle_mapper arniqa
        error_relative_global_dimensionless_synthesis root_mean_squared_error_using_sliding_window
        clip clip_image_quality_assessment
    """,
    "a mean over frames": "lip_vertex_error video_multi_method_assessment_fusion",
    "a mean over recordings": """
        scale_invariant_signal_distortion_ratio signal_noise_ratio
        scale_invariant_signal_noise_ratio signal_distortion_ratio
        complex_scale_invariant_signal_noise_ratio source_aggregated_signal_distortion_ratio
        permutation_invariant_training perceptual_evaluation_speech_quality
        short_time_objective_intelligibility non_intrusive_speech_quality_assessment
        speech_reverberation_modulation_energy_ratio deep_noise_suppression_mean_opinion
    """,
    "a mean over texts": "rouge bert infolm squad edit_distance extended_edit_distance",
    "a mean over samples, unless reduction= says otherwise; "
    "with class weights, over their weights": """
        cross_entropy linear_cross_entropy nll bce bce_with_logits l1 mse binary_cross_entropy
        binary_cross_entropy_with_logits huber smooth_l1 kl_div ctc gaussian_nll poisson_nll
        cosine_embedding hinge_embedding margin_ranking multi_margin multilabel_margin
        multilabel_soft_margin soft_margin triplet_margin triplet_margin_with_distance
        adaptive_log_softmax_with
    """,
}
# What is no metric of one number.
_OTHER = {
    "a curve or a table, no single number: make it from gathered predictions or a synced state": """
        roc det retrieval_precision_recall confusion_matrix multilabel_confusion_matrix
        pair_confusion_matrix confusion_matrix_at_thresholds metric_at_thresholds
        classification_report stat_scores silhouette_samples image_gradients frequency_at_k
        cramers_v_matrix pearsons_contingency_coefficient_matrix theils_u_matrix tschuprows_t_matrix
        num_collisions
    """,
    "a mean over images of one each, and none of a batch's pixels: what it is given decides": """
        peak_signal_noise_ratio peak_signal_noise_ratio_with_blocked_effect
    """,
    "what it wraps decides": """
        metric metric_collection metric_tracker bootstrapper min_max_metric classwise_wrapper
        multioutput_wrapper multitask_wrapper running feature_share lambda_input_transformer
        metric_input_transformer binary_target_transformer target_transformer
    """,
    "what it is given decides; the object syncs by its own sum, maximum or concatenation": """
        base_aggregator cat_metric max_metric min_metric sum_metric mean_metric running_mean
        running_sum cat max min sum
    """,
    "a matrix of pairs, no metric": """
        pairwise_cosine_similarity pairwise_euclidean_distance pairwise_linear_similarity
        pairwise_manhattan_distance pairwise_minkowski_distance pairwise_distances pairwise_kernels
        pairwise_distances_argmin pairwise_distances_argmin_min pairwise_distances_chunked
        euclidean_distances nan_euclidean_distances
    """,
    "a tool, no metric": """
        make_scorer check_scoring get_scorer get_scorer_names cluster distance_metric functional
        pit_permutate confusion_matrix_display det_curve_display precision_recall_display
        prediction_error_display roc_curve_display
    """,
}


@dataclass(frozen=True)
class Entry:
    """What is known of a metric.

    Attributes:
        kind: whether its mean over ranks is right, wrong, or no question (curves, wrappers, tools).
        reason: why.
    """

    kind: Kind
    reason: str


def stem(name: str) -> str:
    """Return the name that stands for others: ``f1`` of ``binary_f1_score`` or ``BinaryF1``."""
    text = name.replace("_", "").replace("-", "").lower()
    for word in _DROPPED * 2:  # BinaryBinnedAUROC
        text = text.removeprefix(word)
    for word in _ENDINGS * 2:  # brier_score_loss
        text = text.removesuffix(word)
    return text


_TABLES: dict[Kind, dict[str, str]] = {
    "other": _OTHER,
    "averageable": _AVERAGEABLE,
    "not averageable": _NOT_AVERAGEABLE,
}
NAMED = {
    name: Entry(kind, reason)
    for kind, table in _TABLES.items()
    for reason, names in table.items()
    for name in names.split()
}
ENTRIES = {stem(name): entry for name, entry in NAMED.items()}


def find(full: str) -> Entry | None:
    """Return what the table says of a qualified name: ``torchmetrics.functional.f1_score``."""
    name = full.rpartition(".")[2]
    if full.startswith(LIBRARIES) or (full.startswith(_LOSSES) and stem(name) in ENTRIES):
        return ENTRIES.get(stem(name))
    return None


def named(key: str) -> Entry | None:
    """Return what the table says of a bare name, for libraries that return a dict of metrics."""
    return ENTRIES.get(stem(key))


def reason_against(full: str) -> str | None:
    """Return why the mean over ranks of a library's metric is wrong; None where it is not known."""
    entry = find(full)
    return entry.reason if entry is not None and entry.kind == "not averageable" else None
