"""The words of which usual column names are made, in English, German, French, Spanish, Italian, Portuguese, Dutch,
Polish, Japanese and Chinese. `fedmc.data.readers.usual` compares them without case, accents and separators."""

from __future__ import annotations

# What is written around a thing to mean its id: Kunden-ID, customer_no, id_cliente, 顧客番号.
ID_AFTER = "id ids nr no num nummer number numero numer code key kennung コード 番号 代码 代碼 编号 編號 号"
ID_BEFORE = (
    "id id_d id_de id_du id_del id_della id_do id_da no nr num numero numero_d numero_de numero_del numer code codigo "
    "codigo_de codice cod kod n"
)

USER_KEYS = "uid cust custid"
USERS = """
    user users customer client patient member reader listener viewer player subscriber student buyer shopper account
    person visitor reviewer rater participant
    Nutzer Benutzer Anwender Kunde Kunden Mitglied Mitglieder Mitglieds Leser Hörer Hoerer Käufer Kaeufer Besucher
    Schüler Schueler Patienten Teilnehmer Spieler
    utilisateur utilisatrice usager adhérent membre lecteur abonné acheteur visiteur élève étudiant auditeur
    usuario cliente paciente miembro socio lector comprador visitante alumno estudiante abonado suscriptor
    utente paziente membro lettore acquirente visitatore studente abbonato
    utilizador leitor aluno assinante
    gebruiker klant patiënt lid lezer koper bezoeker abonnee leerling deelnemer
    użytkownik użytkownika klient klienta pacjent pacjenta członek członka czytelnik czytelnika
    ユーザー ユーザ 利用者 顧客 会員 患者 お客様 読者 購入者
    用户 用戶 使用者 客户 客戶 顾客 会员 會員 病人 读者 讀者 买家
"""

ITEM_KEYS = "iid sku asin isbn"
ITEMS = """
    item items product article movie film track song book video game course recipe artist album podcast episode
    restaurant business venue poi app document paper joke anime drug dish hotel
    Artikel Produkt Buch Bücher Lied Ware Waren Kurs Rezept Medikament Spiel
    produit œuvre livre morceau chanson piste jeu cours recette médicament
    artículo producto película libro canción pista juego curso receta medicamento
    articolo prodotto brano canzone gioco corso ricetta farmaco
    artigo produto filme livro música faixa canção jogo receita
    boek liedje spel cursus recept medicijn
    artykuł artykułu produktu filmu książka książki utwór utworu piosenka piosenki gra gry przedmiot przedmiotu
    towar towaru lek leku przepis przepisu
    商品 製品 アイテム 品目 記事 映画 作品 曲 楽曲 本 書籍 動画 薬
    产品 產品 物品 项目 項目 文章 电影 電影 影片 歌曲 书籍 图书 视频 药品
"""

RATINGS = """
    ratings star stars star_rating score user_rating user_score overall
    Bewertung Bewertungen Note Sterne Punktzahl Wertung Benotung
    évaluation étoiles appréciation
    calificación puntuación puntaje valoración nota estrellas evaluación
    valutazione voto punteggio stelle giudizio
    avaliação classificação pontuação estrelas
    beoordeling waardering sterren
    ocena gwiazdki punktacja
    評価 評点 点数 スコア 得点 星 レーティング
    评分 評分 分数 分數 得分 星级 星級 打分
"""
VALUES = "value Wert valeur valor valore waarde wartość 値 值"  # ratings, or counts

TIMES = """
    time date datetime rated_at created_at event_time event_date event_timestamp rating_time rating_date unix_time
    Zeit Datum Zeitpunkt Zeitstempel bewertet_am erstellt_am Bewertungsdatum
    horodatage date_heure
    fecha fecha_hora marca_de_tiempo
    data data_ora data_hora
    tijd tijdstip tijdstempel
    czas znacznik_czasu
    日時 日付 時刻 タイムスタンプ
    时间 時間 日期 时间戳 時間戳
"""

EVENTS = """
    events event_name action action_type behavior behaviour behavior_type interaction interaction_type
    Ereignis Aktion Ereignistyp événement type_événement evento tipo_evento acción azione ação
    gebeurtenis actie zdarzenie akcja イベント 行動 事件 行为 行為
"""
