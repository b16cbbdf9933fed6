"""Encoder-decoder, vision, speech and mixed models of Hugging Face transformers."""

from __future__ import annotations

import torch
from coverage_family import Batch, Family
from coverage_hf import (
    TEXT,
    VISION,
    B,
    T,
    V,
    causal,
    family,
    image,
    padded,
    pixels,
    plain,
    plain_labels,
    tokens,
    translate,
)


def _seq2seq() -> list[Family]:
    bart = {
        "vocab_size": V,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "decoder_start_token_id": 2,
    }
    t5 = {
        "vocab_size": V,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
    }
    found = [
        family(kind, "Seq2SeqLM", translate, bart)
        for kind in [
            "bart",
            "mbart",
            "marian",
            "pegasus",
            "blenderbot",
            "blenderbot-small",
            "m2m_100",
            "plbart",
            "mvp",
            "led",
        ]
    ]
    found += [
        family(kind, "Seq2SeqLM", translate, t5) for kind in ["t5", "mt5", "umt5", "longt5", "switch_transformers"]
    ]
    found += [
        family("bart", "SequenceClassification", bart_classes, bart, num_labels=3, eos_token_id=2),
        family("t5", "Seq2SeqLM", translate, t5, "gated", feed_forward_proj="gated-gelu"),
        family(
            "prophetnet",
            "Seq2SeqLM",
            translate,
            {
                "vocab_size": V,
                "pad_token_id": 0,
                "decoder_start_token_id": 2,
                "encoder_ffn_dim": 48,
                "decoder_ffn_dim": 48,
                "max_position_embeddings": 64,
            },
            hidden_size=32,
            num_encoder_layers=2,
            num_decoder_layers=2,
            num_encoder_attention_heads=4,
            num_decoder_attention_heads=4,
            ngram=2,
        ),
        family("nllb-moe", "Seq2SeqLM", translate, bart, num_experts=4, encoder_sparse_step=2, decoder_sparse_step=2),
        family(
            "fsmt",
            "Seq2SeqLM",
            lambda: {**translate(), "labels": tokens()},
            bart,
            src_vocab_size=V,
            tgt_vocab_size=V,
            langs=["en", "de"],
        ),
    ]
    return found


def bart_classes() -> Batch:
    ids = tokens()
    ids[:, -1] = 2
    return {"input_ids": ids, "labels": torch.randint(0, 3, (B,))}


def _vision() -> list[Family]:
    stages = {"image_size": 32, "num_channels": 3, "num_labels": 5}
    four = {**stages, "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32]}
    found = [
        family(kind, "ImageClassification", image(), VISION)
        for kind in ["vit", "beit", "data2vec-vision", "dinov2", "dinov2_with_registers", "vit_msn", "ijepa"]
    ]
    found += [
        family(
            "vit_mae",
            "PreTraining",
            lambda: {**pixels()(), "noise": torch.rand(B, 16)},
            VISION,
            decoder_hidden_size=16,
            decoder_intermediate_size=24,
            decoder_num_attention_heads=4,
            decoder_num_hidden_layers=1,
        ),
        family("vit", "MaskedImageModeling", masked_image, VISION, encoder_stride=8),
        family(
            "swin",
            "ImageClassification",
            image(),
            stages,
            embed_dim=16,
            depths=[2, 1],
            num_heads=[2, 4],
            window_size=4,
            patch_size=2,
        ),
        family(
            "swinv2",
            "ImageClassification",
            image(),
            stages,
            embed_dim=16,
            depths=[2, 1],
            num_heads=[2, 4],
            window_size=4,
            patch_size=2,
        ),
        family(
            "swin2sr",
            "ImageToImage",
            pixels(16),
            stages,
            embed_dim=16,
            depths=[2],
            num_heads=[2],
            window_size=4,
            image_size=16,
            upscale=2,
        ),
        family("convnext", "ImageClassification", image(), four),
        family("convnextv2", "ImageClassification", image(), four),
        family(
            "segformer",
            "SemanticSegmentation",
            segments,
            four,
            num_attention_heads=[1, 2, 3, 4],
            decoder_hidden_size=16,
        ),
        family(
            "segformer", "ImageClassification", image(), four, num_attention_heads=[1, 2, 3, 4], decoder_hidden_size=16
        ),
        family(
            "beit",
            "SemanticSegmentation",
            segments,
            VISION,
            out_indices=[1, 2, 3, 4],
            num_hidden_layers=4,
            use_auxiliary_head=False,
            pool_scales=[1, 2],
        ),
        family("dinov3_vit", "", pixels(), VISION),
        family("deit", "MaskedImageModeling", masked_image, VISION, encoder_stride=8),
        family("deit", "ImageClassification", image(), VISION, architectures=["DeiTForImageClassification"]),
        family("xmod", "MaskedLM", padded, {**TEXT, "type_vocab_size": 2}, default_language="en_XX"),
        family("siglip_vision_model", "", pixels(), VISION),
        family(
            "upernet",
            "SemanticSegmentation",
            lambda: segments(64),
            {"num_labels": 5, "hidden_size": 16, "pool_scales": [1, 2]},
            backbone_config={
                "model_type": "convnext",
                "depths": [1, 1, 1, 1],
                "hidden_sizes": [8, 16, 24, 32],
                "out_features": ["stage1", "stage2", "stage3", "stage4"],
            },
            auxiliary_in_channels=24,
        ),
        family(
            "dpt",
            "DepthEstimation",
            pixels(),
            VISION,
            neck_hidden_sizes=[8, 8, 8, 8],
            backbone_out_indices=[0, 1, 2, 3],
            num_hidden_layers=4,
            reassemble_factors=[4, 2, 1, 0.5],
            fusion_hidden_size=8,
        ),
        family("glpn", "DepthEstimation", pixels(), four, num_attention_heads=[1, 2, 3, 4], decoder_hidden_size=16),
        family("resnet", "ImageClassification", image(), four, embedding_size=8, layer_type="basic"),
        family("regnet", "ImageClassification", image(), four, embedding_size=8, groups_width=8),
        family("mobilenet_v1", "ImageClassification", image(), stages, depth_multiplier=0.25),
        family("mobilenet_v2", "ImageClassification", image(), stages, depth_multiplier=0.25),
        family(
            "mobilevit",
            "ImageClassification",
            image(64),
            {**stages, "image_size": 64},
            hidden_sizes=[16, 16, 16],
            neck_hidden_sizes=[8, 8, 8, 8, 8, 8, 16],
            num_attention_heads=2,
        ),
        family(
            "mobilevitv2",
            "ImageClassification",
            image(64),
            {**stages, "image_size": 64},
            width_multiplier=0.25,
            base_attn_unit_dims=[16, 16, 16],
        ),
        family(
            "levit",
            "ImageClassification",
            image(64),
            {**stages, "image_size": 64},
            hidden_sizes=[16, 24, 32],
            num_attention_heads=[2, 3, 4],
            depths=[1, 1, 1],
            key_dim=[8, 8, 8],
            architectures=["LevitForImageClassification"],
            mode="train",
        ),
        family("poolformer", "ImageClassification", image(64), four),
        family("pvt", "ImageClassification", image(64), four, num_attention_heads=[1, 2, 3, 4], image_size=64),
        family("pvt_v2", "ImageClassification", image(64), four, num_attention_heads=[1, 2, 3, 4]),
        family(
            "efficientnet",
            "ImageClassification",
            image(),
            stages,
            width_coefficient=0.25,
            depth_coefficient=0.25,
            hidden_dim=320,
        ),
        family(
            "focalnet",
            "ImageClassification",
            image(),
            stages,
            embed_dim=16,
            depths=[1, 1],
            hidden_sizes=[16, 32],
            focal_levels=[2, 2],
            focal_windows=[3, 3],
        ),
        family("bit", "ImageClassification", image(), four, embedding_size=8, num_groups=4),
        family(
            "cvt",
            "ImageClassification",
            image(),
            stages,
            embed_dim=[8, 16, 32],
            num_heads=[1, 2, 4],
            depth=[1, 2, 3],
            drop_path_rate=[0.0, 0.0, 0.1],
        ),
        family(
            "swiftformer", "ImageClassification", image(64), stages, depths=[1, 1, 1, 1], embed_dims=[8, 16, 24, 32]
        ),
        family(
            "hiera",
            "ImageClassification",
            image(),
            stages,
            embed_dim=8,
            depths=[1, 1],
            num_heads=[1, 2],
            image_size=[32, 32],
            masked_unit_size=[2, 2],
            query_stride=[2, 2],
            num_query_pool=1,
        ),
        family("textnet", "ImageClassification", image(64), stages),
        family("hgnet_v2", "", pixels(64), {}),
    ]
    return found


def masked_image() -> Batch:
    return {"pixel_values": torch.randn(B, 3, 32, 32), "bool_masked_pos": torch.rand(B, 16) > 0.5}


def series() -> Batch:
    return {
        "past_values": torch.randn(B, 10).exp(),
        "past_time_features": torch.randn(B, 10, 2),
        "past_observed_mask": torch.ones(B, 10),
        "future_values": torch.randn(B, 4).exp(),
        "future_time_features": torch.randn(B, 4, 2),
    }


def segments(size: int = 32) -> Batch:
    return {"pixel_values": torch.randn(B, 3, size, size), "labels": torch.randint(0, 5, (B, size, size))}


def speech(samples: int = 1600) -> Batch:
    return {"input_values": torch.randn(B, samples)}


def spectrogram() -> Batch:
    return {"input_features": torch.randn(B, 16, 40), "labels": tokens(7)}


def _others() -> list[Family]:
    """Speech, and text with images."""
    audio = {
        **TEXT,
        "conv_dim": [8, 8],
        "conv_kernel": [10, 3],
        "conv_stride": [5, 4],
        "num_feat_extract_layers": 2,
        "num_conv_pos_embeddings": 8,
        "num_conv_pos_embedding_groups": 2,
        "num_labels": 3,
        "classifier_proj_size": 8,
        "mask_time_prob": 0.0,
    }
    towers = {"text_config": {**TEXT, "num_key_value_heads": None}, "vision_config": VISION, "projection_dim": 16}

    def voices() -> Batch:
        return {**speech(), "labels": torch.randint(0, 3, (B,))}

    def pairs() -> Batch:
        return {**plain(), "pixel_values": torch.randn(B, 3, 32, 32)}

    whisper = {
        "vocab_size": V,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "num_mel_bins": 16,
        "max_source_positions": 20,
        "max_target_positions": 32,
        "pad_token_id": 0,
        "decoder_start_token_id": 1,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "suppress_tokens": None,
        "begin_suppress_tokens": None,
    }
    return [
        family("whisper", "SpeechSeq2Seq", spectrogram, whisper),
        family("wav2vec2", "AudioClassification", voices, audio),
        family("hubert", "AudioClassification", voices, audio),
        family("wavlm", "AudioClassification", voices, audio),
        family("data2vec-audio", "AudioClassification", voices, audio),
        family("sew", "AudioClassification", voices, audio, squeeze_factor=2),
        family(
            "audio-spectrogram-transformer",
            "AudioClassification",
            lambda: {"input_values": torch.randn(B, 40, 16), "labels": torch.randint(0, 5, (B,))},
            VISION,
            patch_size=8,
            frequency_stride=8,
            time_stride=8,
            max_length=40,
            num_mel_bins=16,
        ),
        family("clip", "", pairs, towers),
        family("siglip", "", pairs, towers, text_config={**TEXT, "max_position_embeddings": T}),
        family("altclip", "", pairs, towers),
        family("blip", "", pairs, towers),
        family("vilt", "", pairs, {**TEXT, **VISION}),
        family(
            "git",
            "CausalLM",
            lambda: {**causal(), "pixel_values": torch.randn(B, 3, 32, 32)},
            TEXT,
            vision_config=VISION,
        ),
        family(
            "flava",
            "",
            pairs,
            {},
            text_config=TEXT,
            image_config=VISION,
            multimodal_config=VISION,
            projection_dim=16,
            hidden_size=32,
        ),
        family(
            "vits", "", plain, {"vocab_size": V, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
        ),
        family(
            "time_series_transformer",
            "",
            series,
            {"d_model": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "input_size": 1},
            prediction_length=4,
            context_length=8,
            lags_sequence=[1, 2],
            num_time_features=2,
            encoder_layers=1,
            decoder_layers=1,
        ),
        family(
            "perceiver",
            "MaskedLM",
            plain_labels,
            {
                "vocab_size": V,
                "max_position_embeddings": T,
                "d_model": 32,
                "d_latents": 32,
                "num_latents": 8,
                "num_self_attends_per_block": 1,
                "num_self_attention_heads": 4,
                "num_cross_attention_heads": 4,
            },
        ),
    ]


def families() -> list[Family]:
    return [*_seq2seq(), *_vision(), *_others()]
